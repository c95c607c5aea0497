//! Copies from and to this process, as if it were another one.

use super::*;
use crate::device::Sge;
use crate::device::soft::mem::copy::tests::cut;
use crate::test_pages::TestPages;

/// This process, as one whose file cannot be opened, and with its file.
fn own() -> [RemoteProcess; 2] {
    // Which memory is not there is asked by an access to ours.
    guarded::install_handlers();
    let number = Box::new(0x5eed_u64);
    let [process, mut with_file] = [(); 2].map(|()| RemoteProcess::new(rustix::process::getpid()));
    let at = std::ptr::from_ref(&*number).expose_provenance() as u64;
    assert_eq!(process.read(at), Ok(number.to_ne_bytes()));
    assert_eq!(process.read::<8>(8), Err(Errno::FAULT));
    with_file.open_file(at, &number.to_ne_bytes());
    assert!(with_file.file.is_some());
    [process, with_file]
}

#[test]
fn every_length_in_segments_of_any_shape() {
    let own = own();
    for lens in [
        &[1][..],
        &[15, 1],
        &[16],
        &[17],
        &[0, 40, 0],
        &[4096],
        &[4097],
        &[9000],
        &[3; 200],
        &[1, 5000, 16],
    ] {
        for process in &own {
            copies(process, lens);
        }
    }
}

/// Writes segments of these lengths, and reads them back.
fn copies(process: &RemoteProcess, lens: &[usize]) {
    let len = lens.iter().sum::<usize>();
    let mut source: Vec<u8> = (0..len).map(|i| (i * 31 + 7) as u8).collect();
    let mut target = vec![0u8; len];
    let remote = target.as_mut_ptr() as u64;
    let mut back = vec![0u8; len];
    let (from, to) = (cut(&mut source, lens), cut(&mut back, lens));
    let (from, to) = (Cursor::new(&from), Cursor::new(&to));
    let len = len as u64;
    // SAFETY: three vectors of that length.
    unsafe {
        process
            .copy(Direction::Write, from, remote, len, true)
            .unwrap();
        process
            .copy(Direction::Read, to, remote, len, true)
            .unwrap();
    }
    assert_eq!((target, back), (source.clone(), source));
}

/// Writes are made one after the other, whether or not they adjoin each other.
#[test]
fn a_batch_of_writes() {
    let [process, _] = own();
    let mut source: Vec<u8> = (0..200).map(|i| (i * 31 + 7) as u8).collect();
    let sges = cut(&mut source, &[200]);
    for (apart, ranges) in [(40, 1), (48, MAX_SEGMENTS)] {
        let mut target = [0u8; 4096];
        let mut batch = WriteBatch::new();
        let begin = target.as_mut_ptr() as u64;
        for n in 0..MAX_SEGMENTS as u64 {
            let to = begin + apart * n;
            assert!(batch.push(Cursor::at(&sges, n), to, 40), "{n}");
        }
        assert!(!batch.push(Cursor::new(&sges), begin, 40));
        assert_eq!(batch.remote.count(), ranges);
        // SAFETY: the writes are inside the two vectors.
        let written = unsafe { process.write_all(&batch) };
        assert_eq!(written, Ok(40 * MAX_SEGMENTS as u64));
        let mut writes = target.chunks(apart as usize);
        for (n, write) in writes.by_ref().take(MAX_SEGMENTS).enumerate() {
            assert_eq!(write[..40], source[n..n + 40], "{n}");
            assert!(write[40..].iter().all(|byte| *byte == 0));
        }
        assert!(writes.flatten().all(|byte| *byte == 0));
    }
}

/// The writes up to the first that cannot be made are made.
#[test]
fn a_batch_of_which_a_write_cannot_be_made() {
    let [process, _] = own();
    let mut source: Vec<u8> = (0..200).map(|i| (i * 31 + 7) as u8).collect();
    let mut target = [0u8; 4096];
    let sges = cut(&mut source, &[200]);
    let begin = target.as_mut_ptr() as u64;
    let at = |n: usize| begin + 40 * n as u64;
    // The second of these cannot be made.
    let mut batch = WriteBatch::new();
    for remote in [at(0), 8, at(1)] {
        assert!(batch.push(Cursor::new(&sges), remote, 40));
    }
    // SAFETY: as above.
    assert_eq!(unsafe { process.write_all(&batch) }, Ok(40));
    assert_eq!(target[..40], source[..40]);
    assert!(target[40..].iter().all(|byte| *byte == 0));
    // No room for the segments of one more.
    let mut many = vec![1u8; 2 * MAX_SEGMENTS];
    let sges = cut(&mut many, &[1; 2 * MAX_SEGMENTS]);
    let mut batch = WriteBatch::new();
    assert!(batch.push(Cursor::new(&sges), at(0), 100));
    assert!(!batch.push(Cursor::new(&sges), at(0), 100));
    assert!(batch.push(Cursor::new(&sges), at(0), 20));
    // SAFETY: as above.
    assert_eq!(unsafe { process.write_all(&batch) }, Ok(120));
}

#[test]
fn memory_that_is_not_there() {
    own().iter().for_each(is_told);
}

/// Which memory is not there is told.
fn is_told(process: &RemoteProcess) {
    let mut bytes = [0u8; 8];
    let there = bytes.as_mut_ptr() as u64;
    let sges = cut(&mut bytes, &[8]);
    let nowhere = [Sge {
        addr: 8,
        len: 8,
        lkey: 0,
    }];
    for direction in [Direction::Read, Direction::Write] {
        // SAFETY: eight bytes, or none.
        unsafe {
            let copied = process.copy(direction, Cursor::new(&sges), 8, 8, true);
            assert_eq!(copied, Err(CopyError::Remote));
            let copied = process.copy(direction, Cursor::new(&nowhere), there, 8, true);
            assert_eq!(copied, Err(CopyError::Local));
        }
    }
}

/// What is in front of the first page that is not there is copied, and the side is named.
#[test]
fn a_copy_of_one_segment_ends_at_a_page_that_is_not_there() {
    own().iter().for_each(ends_at_a_page);
}

fn ends_at_a_page(process: &RemoteProcess) {
    let (pages, page) = (TestPages::new(2), TestPages::page());
    pages.unmap(1..2);
    // All of both pages, and the middle.
    for (begin, len) in [(0, 2 * page), (page - 100, 200)] {
        let mut source = vec![7u8; len];
        let sges = cut(&mut source, &[len]);
        let (len, remote) = (len as u64, pages.addr(begin));
        for direction in [Direction::Write, Direction::Read] {
            // SAFETY: as much local memory.
            let copied = unsafe { process.copy(direction, Cursor::new(&sges), remote, len, true) };
            assert_eq!(copied, Err(CopyError::Remote));
        }
    }
    // SAFETY: the first page is there.
    let first = unsafe { std::slice::from_raw_parts(pages.at(0), page) };
    assert!(first.iter().all(|byte| *byte == 7));
}

/// A process that has exited has no memory, whatever process has got its identifier.
#[test]
fn a_process_that_has_exited() {
    let mut child = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .unwrap();
    let process = RemoteProcess {
        file: Some(ProcessFile::of(Pid::from_child(&child))),
        ..RemoteProcess::new(rustix::process::getpid())
    };
    child.kill().unwrap();
    child.wait().unwrap();
    let bytes = [1u8; 8];
    let there = bytes.as_ptr().expose_provenance() as u64;
    let mut to = [0u8; 8];
    // SAFETY: eight bytes.
    assert!(!unsafe { process.copy_at_once(Direction::Read, to.as_mut_ptr(), there, 8) });
    assert_eq!(to, [0; 8]);
}

#[test]
fn copies_at_once_are_whole_or_none() {
    const PAGE: usize = 4096;
    for process in &own() {
        let (mut source, mut target) = (vec![5u8; 3 * PAGE], vec![0u8; 3 * PAGE]);
        for len in [1, 8, 16, 17, PAGE, PAGE + 1, 3 * PAGE] {
            let remote = target.as_mut_ptr().expose_provenance() as u64;
            source[len - 1] = len as u8;
            let mut back = vec![0u8; len];
            // SAFETY: three vectors of that length.
            unsafe {
                let from = source.as_mut_ptr();
                assert!(process.copy_at_once(Direction::Write, from, remote, len as u64));
                let to = back.as_mut_ptr();
                assert!(process.copy_at_once(Direction::Read, to, remote, len as u64));
                for direction in [Direction::Write, Direction::Read] {
                    assert!(!process.copy_at_once(direction, to, 8, len as u64));
                    assert!(!process.copy_at_once(direction, 8 as *mut u8, remote, len as u64));
                }
            }
            assert_eq!(source[..len], target[..len]);
            assert_eq!(source[..len], back);
        }
    }
}
