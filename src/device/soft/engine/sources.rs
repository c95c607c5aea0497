//! The sources of an engine by the tokens that its epoll instance knows them by.

use std::collections::TryReserveError;
use std::sync::Arc;

use super::Source;

/// A place for a source.
struct Place {
    /// Number of sources that have left this place, modulo 2^32. The upper half of a token, so
    /// that an event of a socket that was closed does not reach the next source of the place.
    generation: u32,
    /// The source; `None` if the place is free.
    source: Option<Arc<dyn Source>>,
}

/// The sources of an engine.
#[derive(Default)]
pub(crate) struct Sources {
    /// All places. The index of a place is the lower half of a token.
    places: Vec<Place>,
    /// Indices of the free places.
    free: Vec<u32>,
}

impl Sources {
    /// Adds a source and returns its token.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn add(&mut self, source: Arc<dyn Source>) -> Result<u64, TryReserveError> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.places.try_reserve(1)?;
                // For all places, so that a source can always be removed.
                self.free.try_reserve(self.places.len() + 1)?;
                self.places.push(Place {
                    generation: 0,
                    source: None,
                });
                self.places.len() as u32 - 1
            }
        };
        let place = &mut self.places[index as usize];
        place.source = Some(source);
        Ok(u64::from(place.generation) << 32 | u64::from(index))
    }

    /// The place that a token names, unless its source was removed. The tokens of an engine that
    /// was dropped name none.
    fn place(&mut self, token: u64) -> Option<&mut Place> {
        let place = self.places.get_mut(token as u32 as usize)?;
        (u64::from(place.generation) == token >> 32).then_some(place)
    }

    /// Number of sources.
    #[cfg(dat_sim)]
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The source that a token names.
    pub fn get(&mut self, token: u64) -> Option<Arc<dyn Source>> {
        self.place(token)?.source.clone()
    }

    /// Exchanges the source of a token; returns the old one, to be dropped without the lock.
    pub fn replace(&mut self, token: u64, source: Arc<dyn Source>) -> Option<Arc<dyn Source>> {
        self.place(token)?.source.replace(source)
    }

    /// Removes the source of a token; returns it, to be dropped without the lock.
    pub fn remove(&mut self, token: u64) -> Option<Arc<dyn Source>> {
        let place = self.place(token)?;
        place.generation = place.generation.wrapping_add(1);
        let source = place.source.take();
        self.free.push(token as u32);
        source
    }
}
