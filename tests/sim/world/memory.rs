//! Memory files and mappings. They are those of the real kernel, with its seals and protections; the
//! simulated kernel knows which process has which of them.

use std::ffi::{CStr, c_void};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use dat_core::testing::kernel::FileCall;
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::super::faults::Call;
use super::{Object, World, trace};

/// A memory file, as one descriptor refers to it.
#[derive(Debug)]
pub struct MemoryFile {
    /// The name that the file was given.
    name: String,
    /// The number of the process that has made the file.
    maker: usize,
    /// The file of the real kernel.
    real: OwnedFd,
}

/// The name of the files with the memory of connections.
const SEGMENT: &str = "libdat-wire";

impl MemoryFile {
    /// Whether `process` keeps the file, or its mapping, as long as it lives.
    fn is_of_process(&self, process: usize) -> bool {
        self.maker == process && self.name != SEGMENT
    }
}

/// A part of the memory of a process.
#[derive(Debug)]
pub(super) struct Mapping {
    /// The number of the process.
    process: usize,
    /// Number of bytes.
    len: usize,
    /// The file, and where in the file the mapping begins; `None` for zeros.
    file: Option<(Rc<MemoryFile>, u64)>,
}

impl World {
    /// The memory file of a descriptor.
    pub fn memory_file(&self, fd: RawFd) -> Result<&Rc<MemoryFile>, Errno> {
        match self.object(fd) {
            Some(Object::Memory(file)) => Ok(file),
            Some(_) => Err(Errno::INVAL),
            None => Err(Errno::BADF),
        }
    }

    fn open_memory(&mut self, name: String, maker: usize, real: OwnedFd) -> RawFd {
        let file = MemoryFile { name, maker, real };
        self.open(Object::Memory(Rc::new(file)))
    }

    /// Makes an empty memory file.
    pub(super) fn make_memory(&mut self, name: &CStr, flags: MemfdFlags) -> Result<RawFd, Errno> {
        self.fails(Call::MemoryFile, self.touched)?;
        let real = rustix::fs::memfd_create(name, flags)?;
        let name = name.to_string_lossy().into_owned();
        self.segments += u64::from(name == SEGMENT);
        Ok(self.open_memory(name, self.process, real))
    }

    /// The descriptor of the real kernel, for a call that is executed with it.
    pub(super) fn real_file(&mut self, fd: RawFd, call: FileCall) -> Result<RawFd, Errno> {
        let call = match call {
            FileCall::Resize | FileCall::Seal => Call::ChangeFile,
            FileCall::Allocate => Call::Allocate,
            FileCall::Query => Call::QueryFile,
        };
        self.fails(call, self.touched)?;
        Ok(self.memory_file(fd)?.real.as_raw_fd())
    }

    /// Opens a memory file again, for reading.
    pub(super) fn reopen(&mut self, fd: RawFd) -> Result<RawFd, Errno> {
        self.fails(Call::Reopen, self.touched)?;
        let file = self.memory_file(fd)?.clone();
        let path = format!("/proc/self/fd/{}", file.real.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let real = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(self.open_memory(file.name.clone(), file.maker, real))
    }

    /// Another descriptor of a memory file.
    pub(super) fn duplicate(&mut self, fd: RawFd) -> Result<RawFd, Errno> {
        self.fails(Call::Duplicate, self.touched)?;
        let file = self.memory_file(fd)?.clone();
        Ok(self.open(Object::Memory(file)))
    }

    /// Maps a part of a memory file, or zeros.
    pub(super) fn map(
        &mut self,
        hint: *mut c_void,
        len: usize,
        protection: ProtFlags,
        file: Option<(RawFd, u64)>,
    ) -> Result<*mut c_void, Errno> {
        self.fails(Call::Map, self.touched)?;
        let file = match file {
            Some((fd, offset)) => Some((self.memory_file(fd)?.clone(), offset)),
            None => None,
        };
        let shared = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe {
            match &file {
                Some((file, offset)) => {
                    rustix::mm::mmap(hint, len, protection, shared, &file.real, *offset)
                }
                None => rustix::mm::mmap_anonymous(hint, len, protection, MapFlags::PRIVATE),
            }
        }?;
        let mapping = Mapping {
            process: self.process,
            len,
            file,
        };
        self.mappings.insert(at.addr(), mapping);
        Ok(at)
    }

    /// Unmaps memory.
    ///
    /// # Safety
    /// Nothing refers to the memory any more.
    pub(super) unsafe fn unmap(&mut self, at: *mut c_void, len: usize) {
        let mapping = self.mappings.remove(&at.addr());
        assert!(
            mapping.is_some_and(|mapping| mapping.len == len),
            "what is unmapped was mapped as a whole"
        );
        // SAFETY: the caller's promise.
        let _ = unsafe { rustix::mm::munmap(at, len) };
    }

    /// Gives a process that was killed copies of what it has mapped. They can be accessed as a whole, also where
    /// the process has not made that so yet.
    pub(super) fn separate(&mut self, process: usize) {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        for (at, mapping) in &self.mappings {
            if mapping.process == process
                && let Some((file, offset)) = &mapping.file
            {
                let at = std::ptr::with_exposed_provenance_mut(*at);
                // SAFETY: takes the place of a mapping with the same contents.
                unsafe { rustix::mm::mmap(at, mapping.len, access, flags, &file.real, *offset) }
                    .expect("a private mapping of a file that is mapped");
            }
        }
    }

    /// A process has ended: unmaps what it still has mapped, which its memory would not outlive.
    ///
    /// # Safety
    /// Nothing refers to the memory any more.
    pub unsafe fn unmap_all(&mut self, process: usize) {
        for (at, mapping) in &self.mappings {
            if mapping.process == process {
                let at = std::ptr::with_exposed_provenance_mut(*at);
                // SAFETY: the caller's promise.
                let _ = unsafe { rustix::mm::munmap(at, mapping.len) };
            }
        }
        self.mappings
            .retain(|_, mapping| mapping.process != process);
    }

    /// What a process has open or mapped of its connections, for a report; empty if that is nothing.
    pub fn left_of_connections(&self, process: usize) -> String {
        let mut left = String::new();
        let own = self.files.iter().flatten().filter(|f| f.owner == process);
        for file in own {
            match &file.object {
                Object::Process(_) => left += "a process descriptor\n",
                Object::Memory(file) if !file.is_of_process(process) => {
                    left += &format!("a descriptor of {}\n", file.name);
                }
                _ => {}
            }
        }
        let own = self.mappings.values().filter(|m| m.process == process);
        for mapping in own {
            if let Some((file, _)) = &mapping.file
                && !file.is_of_process(process)
            {
                left += &format!("a mapping of {}\n", file.name);
            }
        }
        trace!(self, "left of connections: {left}");
        left
    }
}
