//! Receives of a queue pair that has no connection, which a change of the queue pair posts again.

use std::collections::VecDeque;

use crate::device::{PostError, RecvWr, Sge, WrFlags};

/// A receive, with its segments.
struct PrepostedRecv {
    wr_id: u64,
    sges: Box<[Sge]>,
    flags: WrFlags,
}

/// The receives that are outstanding, the oldest first.
#[derive(Default)]
pub(super) struct Preposted(VecDeque<PrepostedRecv>);

impl Preposted {
    /// Makes room for another one.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    pub fn reserve(&mut self) -> Result<(), PostError> {
        self.0.try_reserve(1).map_err(|_| PostError::QueueFull)
    }

    /// Adds a receive that was posted, with which so many are outstanding.
    #[inline(never)]
    pub fn push(&mut self, wr: &RecvWr<'_>, outstanding: u32) {
        self.0.push_back(PrepostedRecv {
            wr_id: wr.wr_id,
            sges: wr.sges.into(),
            flags: wr.flags,
        });
        self.keep(outstanding);
    }

    /// Forgets the receives that have completed, which are the oldest: only so many are outstanding.
    /// Without a connection only datagrams complete receives.
    pub fn keep(&mut self, outstanding: u32) {
        let completed = self.0.len().saturating_sub(outstanding as usize);
        self.0.drain(..completed);
    }

    /// Posts the receives again.
    pub fn repost(
        &self,
        mut post: impl FnMut(&RecvWr<'_>) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        self.0.iter().try_for_each(|preposted| {
            post(&RecvWr {
                wr_id: preposted.wr_id,
                sges: &preposted.sges,
                flags: preposted.flags,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_that_have_completed_are_not_posted_again() {
        let mut preposted = Preposted::default();
        let push = |preposted: &mut Preposted, wr_id, outstanding| {
            let wr = RecvWr {
                wr_id,
                sges: &[Sge::NONE],
                flags: WrFlags::empty(),
            };
            preposted.reserve().unwrap();
            preposted.push(&wr, outstanding);
        };
        let reposted = |preposted: &Preposted| {
            let mut numbers = Vec::new();
            let result = preposted.repost(|wr| {
                numbers.push(wr.wr_id);
                Ok(())
            });
            assert_eq!(result, Ok(()));
            numbers
        };
        for wr_id in 1..=3 {
            push(&mut preposted, wr_id, wr_id as u32);
        }
        assert_eq!(reposted(&preposted), [1, 2, 3]);
        // Two have completed before the next one was posted.
        push(&mut preposted, 4, 2);
        assert_eq!(reposted(&preposted), [3, 4]);
        preposted.keep(1);
        assert_eq!(reposted(&preposted), [4]);
        let refused = preposted.repost(|_| Err(PostError::QueueFull));
        assert_eq!(refused, Err(PostError::QueueFull));
    }
}
