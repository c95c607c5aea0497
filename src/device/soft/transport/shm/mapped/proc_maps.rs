//! What is mapped in this process, as the kernel tells it.

use std::fs::File;
use std::io::{Read, Seek};
use std::ops::Range;

/// A mapping.
pub(crate) struct Vma {
    /// Its addresses.
    pub at: Range<u64>,
    pub read: bool,
    pub write: bool,
    pub execute: bool,
    shared: bool,
    /// Of the first byte in the file.
    pub offset: u64,
    /// Device and number of the file; zeros if there is none.
    pub file: (u32, u32, u64),
    /// Nothing is special about it: see [`PLAIN`]. Only told in detail.
    ordinary: bool,
}

/// Flags of mappings that other memory, put in their place, can do without: may be read, written
/// or executed, is counted or not, was written to.
const PLAIN: [&str; 8] = ["rd", "wr", "mr", "mw", "me", "ac", "nr", "sd"];

impl Vma {
    /// Memory of the process's own as programs usually have it, which may be read and written.
    pub fn is_plain(&self) -> bool {
        self.file.2 == 0
            && self.read
            && self.write
            && !self.execute
            && !self.shared
            && self.ordinary
    }

    /// A mapping that others have, too, which may be read and written.
    pub fn is_shared(&self) -> bool {
        self.shared && self.read && self.write
    }

    /// The part of a file that is here.
    pub fn of_file(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.at.end - self.at.start)
    }

    fn parse(line: &str) -> Option<(Vma, &str)> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let permissions = words.next()?;
        let offset = words.next()?;
        let (major, minor) = words.next()?.split_once(':')?;
        let inode = words.next()?.parse().ok()?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let has = |letter| permissions.contains(letter);
        let vma = Vma {
            at: hex(start)?..hex(end)?,
            read: has('r'),
            write: has('w'),
            execute: has('x'),
            shared: has('s'),
            offset: hex(offset)?,
            file: (hex(major)? as u32, hex(minor)? as u32, inode),
            ordinary: false,
        };
        Some((vma, words.next().unwrap_or("")))
    }
}

/// All mappings, in order.
pub(crate) struct Maps {
    pub all: Vec<Vma>,
    /// Some belong to I/O that the kernel does on its own.
    pub asynchronous: bool,
}

impl Maps {
    /// Where things are, from a file that is `/proc/self/maps`.
    pub fn read(mut file: &File) -> std::io::Result<Maps> {
        let mut text = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut text)?;
        Ok(Maps::parse(&text))
    }

    /// The same, and what is special about them.
    pub fn read_in_detail() -> std::io::Result<Maps> {
        std::fs::read("/proc/self/smaps").map(|text| Maps::parse(&text))
    }

    fn parse(text: &[u8]) -> Maps {
        let mut maps = Maps {
            all: Vec::new(),
            asynchronous: false,
        };
        let mut protected = false;
        for line in String::from_utf8_lossy(text).lines() {
            if let Some(flags) = line.strip_prefix("VmFlags:") {
                if let Some(last) = maps.all.last_mut() {
                    let plain = |flag: &str| PLAIN.contains(&flag);
                    last.ordinary = !protected && flags.split_ascii_whitespace().all(plain);
                }
            } else if let Some(key) = line.strip_prefix("ProtectionKey:") {
                protected = key.trim() != "0";
            } else if let Some((vma, name)) = Vma::parse(line) {
                protected = false;
                maps.asynchronous |= name == "/[aio]" || name.contains("[io_uring]");
                maps.all.push(vma);
            }
        }
        maps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
557cb9fb7000-557cb9fd8000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
ProtectionKey:         0
VmFlags: rd wr mr mw me ac sd 
7f0000000000-7f0000001000 rw-p 00000000 00:00 0 
ProtectionKey:         3
VmFlags: rd wr mr mw me ac sd 
7f0000001000-7f0000002000 rw-p 00000000 00:00 0 
VmFlags: rd wr mr mw me lo ac sd 
7f9828400000-7f9928400000 rw-s 7f9900000000 00:1f 129464                 /memfd:x (deleted)
VmFlags: rd wr sh mr mw me ms dc nr sd 
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
VmFlags: rd wr mr mw me gd ac 
";

    #[test]
    fn what_is_plain() {
        let maps = Maps::parse(TEXT);
        let plain: Vec<bool> = maps.all.iter().map(Vma::is_plain).collect();
        assert_eq!(plain, [true, false, false, false, false]);
        let file = &maps.all[3];
        assert!(file.is_shared() && !maps.asynchronous);
        assert_eq!(file.file, (0, 0x1f, 129464));
        assert_eq!(file.of_file(), 0x7f99_0000_0000..0x7f9a_0000_0000);
        assert!(Maps::parse(b"7f00-7f10 rw-s 00000000 00:0f 3 /[aio] (deleted)").asynchronous);
    }

    #[test]
    fn our_own() {
        let (local, detail) = (0u8, Maps::read_in_detail().unwrap());
        let holds = |vma: &&Vma| vma.at.contains(&(std::ptr::from_ref(&local) as u64));
        let own = detail.all.iter().find(holds).unwrap();
        assert!(own.read && own.write);
        let file = File::open("/proc/self/maps").unwrap();
        for _ in 0..2 {
            let maps = Maps::read(&file).unwrap();
            assert!(maps.all.iter().any(|locked| holds(&locked)));
        }
        let (heap, code) = (vec![0u8; 1 << 20], our_own as *const () as u64);
        let heap = heap.as_ptr() as u64;
        let plain = |at| {
            detail
                .all
                .iter()
                .any(|locked| locked.at.contains(&at) && locked.is_plain())
        };
        // The vector came after the list, the code did not change since.
        assert!(!plain(code));
        let again = Maps::read_in_detail().unwrap();
        assert!(
            again
                .all
                .iter()
                .any(|locked| locked.at.contains(&heap) && locked.is_plain())
        );
    }
}
