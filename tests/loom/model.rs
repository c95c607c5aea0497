//! The bound of the search that every model has.

/// Runs a model in every interleaving of its threads with at most three preemptions, or as many as
/// `LOOM_MAX_PREEMPTIONS` allows.
pub fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(f);
}
