//! Who owns a lock, and who waits for whom.

use super::*;

type Outer = Biased<u64>;

const OFTEN: u32 = FIRST_THRESHOLD + 1;

fn owned(lock: &Biased<u64>) -> bool {
    lock.owner.load(Ordering::Relaxed) == pin::thread().id()
}

fn is_owners<const LEVEL: usize>(held: &Held<'_, u64, LEVEL>) -> bool {
    matches!(held.by, Some(By::Owner(_)))
}

/// Without the barrier of the kernel it is a mutex, and there is nothing else to see.
fn is_a_mutex() -> bool {
    let lock = Outer::new(0);
    (0..OFTEN).for_each(|_| drop(lock.lock()));
    assert_eq!(owned(&lock), !pin::fences_needed());
    pin::fences_needed()
}

#[test]
fn it_becomes_the_threads_own_and_is_taken_away() {
    if is_a_mutex() {
        return;
    }
    let lock = Outer::new(0);
    (0..OFTEN).for_each(|_| *lock.lock() += 1);
    assert!(owned(&lock));
    (0..OFTEN).for_each(|_| *lock.lock() += 1);
    lock.bias.lock().since = None;
    std::thread::scope(|s| s.spawn(|| *lock.lock() += 1).join().unwrap());
    assert!(!owned(&lock));
    // It takes longer from now on.
    (0..OFTEN).for_each(|_| *lock.lock() += 1);
    assert!(!owned(&lock));
    (0..OFTEN).for_each(|_| *lock.lock() += 1);
    assert!(owned(&lock));
    // And no longer than the first time after a long ownership.
    lock.bias.lock().since = Instant::now().checked_sub(MADE_UP_FOR_WAIT);
    std::thread::scope(|s| s.spawn(|| *lock.lock() += 1).join().unwrap());
    (0..OFTEN).for_each(|_| *lock.lock() += 1);
    assert!(owned(&lock));
    assert_eq!(*lock.lock(), u64::from(5 * OFTEN) + 2);
}

#[test]
fn it_becomes_that_of_the_thread_that_uses_it_now() {
    if is_a_mutex() {
        return;
    }
    let lock = Outer::new(0);
    (0..OFTEN).for_each(|_| drop(lock.lock()));
    for round in 1..=6 {
        let often = (FIRST_THRESHOLD << round) + 1;
        std::thread::scope(|s| {
            s.spawn(|| {
                (0..often).for_each(|_| drop(lock.lock()));
                assert!(owned(&lock), "round {round}");
            });
        });
    }
}

#[test]
fn another_of_the_same_level_is_taken_as_a_mutex() {
    if is_a_mutex() {
        return;
    }
    let (outer, other) = (Outer::new(0), Outer::new(0));
    let inner = Biased::<u64, INNER>::new(0);
    for _ in 0..OFTEN {
        drop(outer.lock());
        drop(other.lock());
        drop(inner.lock());
    }
    let held = outer.lock();
    let both = inner.lock();
    assert!(is_owners(&held) && is_owners(&both));
    let second = other.lock();
    assert!(!is_owners(&second) && !owned(&other));
    // Whoever wants one of them waits for that one alone.
    drop(second);
    std::thread::scope(|s| s.spawn(|| *other.lock() += 1).join().unwrap());
    std::thread::scope(|s| {
        let waits = s.spawn(|| *inner.lock() += 1);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waits.is_finished());
        drop(both);
        waits.join().unwrap();
    });
    assert!(is_owners(&held) && owned(&outer));
}

/// What is taken in such a section need not look for another lock.
#[test]
fn no_plain_section_begins_while_one_is_held() {
    if is_a_mutex() {
        return;
    }
    let (outer, inner) = (Outer::new(0), Biased::<u64, INNER>::new(0));
    (0..OFTEN).for_each(|_| drop((outer.lock(), inner.lock())));
    // Garbage of other tests of this process is in the way for as long as one of their threads has no processor
    // within a section.
    let begins_within = |patience| {
        let since = Instant::now();
        loop {
            pin::sweep();
            if pin::pin_plainly().is_some() {
                return true;
            }
            if since.elapsed() > patience {
                return false;
            }
            std::thread::yield_now();
        }
    };
    let (soon, ever) = (Duration::from_millis(5), Duration::from_secs(30));
    assert!(begins_within(ever));
    let held = outer.lock();
    assert!(is_owners(&held) && !begins_within(soon));
    drop(held);
    let held = inner.lock();
    assert!(is_owners(&held) && !begins_within(soon));
    drop(held);
    assert!(begins_within(ever));
}

#[test]
fn who_takes_it_away_waits_for_the_owner() {
    if is_a_mutex() {
        return;
    }
    let lock = Outer::new(0);
    (0..OFTEN).for_each(|_| drop(lock.lock()));
    std::thread::scope(|s| {
        let mut held = lock.lock();
        assert!(is_owners(&held));
        let other = s.spawn(|| *lock.lock());
        std::thread::sleep(Duration::from_millis(20));
        *held = 7;
        drop(held);
        assert_eq!(other.join().unwrap(), 7);
    });
}

#[test]
fn others_get_it_while_it_is_let_go() {
    if is_a_mutex() {
        return;
    }
    let lock = Outer::new(0);
    (0..OFTEN).for_each(|_| drop(lock.lock()));
    for first_as_owner in [true, false] {
        let mut held = lock.lock();
        assert_eq!(is_owners(&held), first_as_owner);
        held.unlocked(|| std::thread::scope(|s| drop(s.spawn(|| *lock.lock() += 1))));
        *held += 1;
    }
    assert_eq!(*lock.lock(), 4);
}

#[test]
fn one_at_a_time() {
    let lock = Outer::new(0);
    std::thread::scope(|s| {
        for run in [3 * OFTEN, 7, 1, 5 * OFTEN] {
            let lock = &lock;
            s.spawn(move || {
                for _ in 0..20_000 / run + 1 {
                    for _ in 0..run {
                        let mut held = lock.lock();
                        let seen = *held;
                        *held = std::hint::black_box(seen) + 1;
                    }
                    std::thread::yield_now();
                }
            });
        }
    });
    let expected: u32 = [3 * OFTEN, 7, 1, 5 * OFTEN]
        .map(|run| (20_000 / run + 1) * run)
        .iter()
        .sum();
    assert_eq!(*lock.lock(), u64::from(expected));
}
