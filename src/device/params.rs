//! The parameters in the `ia_params` field of a `dat.conf` entry: how a device describes those that
//! it takes.

/// A parameter that an entry may set.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name, left of the equals sign.
    pub name: &'static str,
    /// The values that it may have, right of the equals sign.
    pub values: &'static str,
    /// The value if the parameter is not given.
    pub default: &'static str,
    /// What it is for, in one sentence.
    pub help: &'static str,
}

/// The message for a parameter that is none of `known`.
pub fn unknown<'a>(key: &str, known: impl IntoIterator<Item = &'a Key>) -> String {
    let names: Vec<&str> = known.into_iter().map(|key| key.name).collect();
    format!("unknown parameter \"{key}\"; known: {}", names.join(", "))
}

/// The message for a value that `key` does not have.
pub fn wrong_value(key: &Key, value: &str) -> String {
    format!("{} is one of {}, not \"{value}\"", key.name, key.values)
}
