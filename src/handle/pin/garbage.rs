//! The list of objects that wait for sections to end. Linked, and in no array: it may have any length,
//! and no call can fail because an array does not grow.

/// Retired objects, by the newest.
pub struct Garbage(Option<Box<Retired>>);

impl Garbage {
    pub const EMPTY: Garbage = Garbage(None);

    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub fn push(&mut self, mut retired: Box<Retired>) {
        retired.older = self.0.take();
        self.0 = Some(retired);
    }

    pub fn pop(&mut self) -> Option<Box<Retired>> {
        let mut newest = self.0.take()?;
        self.0 = newest.older.take();
        Some(newest)
    }

    /// The same objects, the oldest in place of the newest.
    pub fn reversed(mut self) -> Garbage {
        let mut reversed = Garbage::EMPTY;
        while let Some(retired) = self.pop() {
            reversed.push(retired);
        }
        reversed
    }

    pub fn iter(&self) -> impl Iterator<Item = &Retired> {
        std::iter::successors(self.0.as_deref(), |retired| retired.older.as_deref())
    }
}

/// An object that is unreachable and not freed yet.
pub struct Retired {
    /// The epoch in which it was retired: sections that began later cannot access it.
    pub epoch: u64,
    /// Frees it.
    pub free: Box<dyn FnOnce() + Send>,
    /// The one that was retired before.
    pub older: Option<Box<Retired>>,
}
