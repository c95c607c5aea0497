# SPDX-License-Identifier: MIT OR Apache-2.0
"""vmlinux.py BZIMAGE: writes the ELF kernel that is compressed inside to standard output."""

import lzma
import subprocess
import sys


def xz(data):
    """The XZ stream that data begins with, decompressed; what follows it is left alone."""
    return lzma.LZMADecompressor().decompress(data)


def zstd(data):
    """The same for Zstandard; the trailing data makes the tool complain at the end."""
    tool = ["zstd", "-dcq"]
    return subprocess.run(
        tool, input=data, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
    ).stdout


def kernel(image):
    """The first place in the image that decompresses to an ELF file."""
    for magic, decompress in ((b"\xfd7zXZ\0", xz), (b"\x28\xb5\x2f\xfd", zstd)):
        at = image.find(magic)
        while at >= 0:
            try:
                found = decompress(image[at:])
            except lzma.LZMAError:
                found = b""
            if found.startswith(b"\x7fELF"):
                return found
            at = image.find(magic, at + 1)
    return sys.exit("no kernel found in the image")


with open(sys.argv[1], "rb") as file:
    sys.stdout.buffer.write(kernel(file.read()))
