/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the program calls in each of its two modules, end_1 for DAT 1.2 and end_2 for 2.0. */
#ifndef END_H
#define END_H

struct end {
	/* Opens the IA "a". */
	void (*up)(void);
	/* Registers memory, and frees it. */
	void (*register_memory)(void);
	/* Sends what is unmapped while it is registered: the send fails, and nothing else happens. */
	void (*send_unmapped)(void);
};

extern const struct end end_1, end_2;

#endif
