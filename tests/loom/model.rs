//! The bound of the search that every model has.

/// Runs a model in every interleaving of its threads with at most three preemptions, or as many as
/// `LOOM_MAX_PREEMPTIONS` allows.
pub fn model(f: impl Fn() + Send + Sync + 'static) {
    within(3, f);
}

/// [`model`] with at most two preemptions, for a model of which three take minutes. `make loom` has three.
#[allow(dead_code, reason = "one program uses it")]
pub fn long_model(f: impl Fn() + Send + Sync + 'static) {
    within(2, f);
}

fn within(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(f);
}
