//! The mappings of this process, from `/proc/self/maps` and `/proc/self/smaps` (`proc(5)`).

use std::io::Read;
use std::ops::Range;

use crate::descriptor::OwnedFd;

/// A mapping: a "virtual memory area" of the kernel.
pub(crate) struct Vma {
    /// The addresses of the mapping.
    pub at: Range<u64>,
    /// Whether it may be read.
    pub read: bool,
    /// Whether it may be written.
    pub write: bool,
    /// Whether it may be executed.
    pub execute: bool,
    /// Whether it is `MAP_SHARED`.
    shared: bool,
    /// Offset of its first byte in the file, in bytes.
    pub offset: u64,
    /// Major and minor device number and inode number of the file; zeros if it is of no file.
    pub file: (u32, u32, u64),
    /// Whether it has only flags of [`PLAIN_FLAGS`] and no protection key. Known from `smaps` only.
    plain_flags: bool,
}

/// The `VmFlags` that need not be kept when other memory takes the place of a mapping: those of the
/// protection, of the accounting, and of soft-dirty pages.
const PLAIN_FLAGS: [&str; 8] = ["rd", "wr", "mr", "mw", "me", "ac", "nr", "sd"];

impl Vma {
    /// Whether it is usual private memory of a program, which may be read and written.
    pub fn is_plain(&self) -> bool {
        self.file.2 == 0
            && self.read
            && self.write
            && !self.execute
            && !self.shared
            && self.plain_flags
    }

    /// Whether it is a shared mapping that may be read and written.
    pub fn is_shared(&self) -> bool {
        self.shared && self.read && self.write
    }

    /// The offsets in the file that it maps.
    pub fn file_range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.at.end - self.at.start)
    }

    /// Parses a line of `maps`. Returns the mapping and the name of its file.
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
            plain_flags: false,
        };
        Some((vma, words.next().unwrap_or("")))
    }
}

/// All mappings of the process.
pub(crate) struct ProcMaps {
    /// The mappings, in the order of their addresses.
    pub all: Vec<Vma>,
    /// Whether the process has queues of asynchronous I/O (AIO or io_uring).
    pub has_async_io: bool,
}

impl ProcMaps {
    /// Reads the mappings without their flags from an open file `/proc/self/maps`.
    pub fn read(mut file: &OwnedFd) -> std::io::Result<ProcMaps> {
        let mut text = Vec::new();
        rustix::fs::seek(file, rustix::fs::SeekFrom::Start(0))?;
        file.read_to_end(&mut text)?;
        ProcMaps::parse(&text)
    }

    /// Reads the mappings with their flags from `/proc/self/smaps`.
    pub fn read_smaps() -> std::io::Result<ProcMaps> {
        ProcMaps::parse(&std::fs::read("/proc/self/smaps")?)
    }

    /// # Errors
    /// `OutOfMemory`: a process may have any number of mappings.
    fn parse(text: &[u8]) -> std::io::Result<ProcMaps> {
        let mut maps = ProcMaps {
            all: Vec::new(),
            has_async_io: false,
        };
        let mut protected = false;
        for line in text.split(|byte| *byte == b'\n') {
            let line = &*String::from_utf8_lossy(line);
            if let Some(flags) = line.strip_prefix("VmFlags:") {
                if let Some(last) = maps.all.last_mut() {
                    let plain = |flag: &str| PLAIN_FLAGS.contains(&flag);
                    last.plain_flags = !protected && flags.split_ascii_whitespace().all(plain);
                }
            } else if let Some(key) = line.strip_prefix("ProtectionKey:") {
                protected = key.trim() != "0";
            } else if let Some((vma, name)) = Vma::parse(line) {
                protected = false;
                maps.has_async_io |= name == "/[aio]" || name.contains("[io_uring]");
                maps.all.try_reserve(1)?;
                maps.all.push(vma);
            }
        }
        Ok(maps)
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
    fn plain_mappings() {
        let maps = ProcMaps::parse(TEXT).unwrap();
        let plain: Vec<bool> = maps.all.iter().map(Vma::is_plain).collect();
        assert_eq!(plain, [true, false, false, false, false]);
        let file = &maps.all[3];
        assert!(file.is_shared() && !maps.has_async_io);
        assert_eq!(file.file, (0, 0x1f, 129464));
        assert_eq!(file.file_range(), 0x7f99_0000_0000..0x7f9a_0000_0000);
        let queue = ProcMaps::parse(b"7f00-7f10 rw-s 00000000 00:0f 3 /[aio] (deleted)");
        assert!(queue.unwrap().has_async_io);
    }

    #[test]
    fn mappings_of_this_process() {
        let (local, detail) = (0u8, ProcMaps::read_smaps().unwrap());
        let holds = |vma: &&Vma| vma.at.contains(&(std::ptr::from_ref(&local) as u64));
        let own = detail.all.iter().find(holds).unwrap();
        assert!(own.read && own.write);
        let file = std::fs::File::open("/proc/self/maps").unwrap().into();
        for _ in 0..2 {
            let maps = ProcMaps::read(&file).unwrap();
            assert!(maps.all.iter().any(|vma| holds(&vma)));
        }
        let (heap, code) = (
            vec![0u8; 1 << 20],
            mappings_of_this_process as *const () as u64,
        );
        let heap = heap.as_ptr() as u64;
        let plain = |at| {
            detail
                .all
                .iter()
                .any(|vma| vma.at.contains(&at) && vma.is_plain())
        };
        // The vector was allocated after the mappings were read.
        assert!(!plain(code));
        let again = ProcMaps::read_smaps().unwrap();
        assert!(
            again
                .all
                .iter()
                .any(|vma| vma.at.contains(&heap) && vma.is_plain())
        );
    }
}
