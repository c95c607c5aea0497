//! The figures as tables for people.

use serde_json::Value;

use super::objects::{self, Counters, Object, Since, scaled};
use super::processes::{Library, Processes, State, program};
use crate::table::render;

/// What the tables are to be like.
#[derive(Clone, Copy)]
pub struct Form {
    /// Totals, not rates.
    pub totals: bool,
    /// How many rows a table of objects may have.
    pub rows: usize,
}

/// Shown where nothing is known.
const NONE: &str = "-";

/// The text for people: a block for each process, that with the most traffic first.
pub fn text(processes: &Processes, form: Form) -> String {
    let libraries = processes.libraries();
    if libraries.is_empty() {
        return "no process of this user offers figures: those with DAT_COUNTERS=states or \
                DAT_COUNTERS=on do\n"
            .to_owned();
    }
    let mut blocks: Vec<(f64, String)> = libraries
        .iter()
        .map(|library| block(library, form))
        .collect();
    blocks.sort_by(|a, b| b.0.total_cmp(&a.0));
    let blocks: Vec<String> = blocks.into_iter().map(|(_, text)| text).collect();
    blocks.join("\n")
}

/// What a library of a process shows, and how much traffic it has.
fn block(library: &Library<'_>, form: Form) -> (f64, String) {
    let state = match library.state {
        State::Running => String::new(),
        // The figures are those of the last answer.
        state => format!(", {}", state.name()),
    };
    let mut text = format!("{} {}{state}\n", library.pid, program(library.pid));
    let mut weight = 0.0;
    let Some(last) = library.last else {
        return (weight, text);
    };
    for ia in members(last, "ias") {
        let before = library.before.and_then(|before| same(before, "ias", ia));
        let time = |ia: &Value| ia["time_ns"].as_f64();
        let since = match before.and_then(|before| Some(time(ia)? - time(before)?)) {
            _ if form.totals => Since::Beginning,
            Some(nanoseconds) => Since::Before(nanoseconds / 1e9),
            None => Since::Unknown,
        };
        weight += of_ia(ia, before, since, form, &mut text);
    }
    (weight, text)
}

/// The objects of a list.
fn members<'a>(of: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    of[list].as_array().into_iter().flatten()
}

/// The object of a list that has the same handle.
fn same<'a>(of: &'a Value, list: &str, object: &Value) -> Option<&'a Value> {
    members(of, list).find(|other| other["handle"] == object["handle"])
}

/// The objects of a list, each as it was before.
fn objects<'a>(
    ia: &'a Value,
    before: Option<&'a Value>,
    list: &str,
    since: Since,
) -> Vec<Object<'a>> {
    let then: std::collections::BTreeMap<&str, &Value> = before
        .into_iter()
        .flat_map(|before| members(before, list))
        .filter_map(|object| Some((object["handle"].as_str()?, object)))
        .collect();
    let object = |now: &'a Value| Object {
        now,
        before: now["handle"]
            .as_str()
            .and_then(|handle| then.get(handle).copied()),
        since,
    };
    members(ia, list).map(object).collect()
}

fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.replace(char::is_control, "?"),
        Value::Number(number) => number.to_string(),
        _ => NONE.to_owned(),
    }
}

fn figure(object: &Object<'_>, counters: Counters) -> String {
    object.sum(counters).map_or_else(|| NONE.to_owned(), scaled)
}

/// Adds what an IA shows. Gives how much traffic it has.
fn of_ia(ia: &Value, before: Option<&Value>, since: Since, form: Form, text: &mut String) -> f64 {
    let counters = match ia["counters"].is_null() {
        true => "off",
        false => "on",
    };
    text.push_str(&format!(
        "IA {} ({}, {}), DAT {}, counters {counters}, {} endpoints, {} EVDs{}\n",
        word(&ia["name"]),
        word(&ia["device"]),
        word(&ia["address"]),
        word(&ia["api"]),
        members(ia, "endpoints").count(),
        members(ia, "evds").count(),
        errors(ia),
    ));
    let mut eps = objects(ia, before, "endpoints", since);
    let mut evds = objects(ia, before, "evds", since);
    let srqs = objects(ia, before, "srqs", since);
    let weight = eps.iter().map(Object::weight).sum();
    eps.sort_by(|a, b| b.weight().total_cmp(&a.weight()));
    let traffic = |evd: &Object<'_>| {
        let all = [objects::WAITS, objects::FOUND];
        all.iter().filter_map(|counters| evd.sum(counters)).sum()
    };
    evds.sort_by(|a, b| f64::total_cmp(&traffic(b), &traffic(a)));
    table(text, eps, form, endpoint_heads(since), endpoint);
    table(text, evds, form, evd_heads(since), evd);
    table(text, srqs, form, SRQ_HEADS, srq);
    weight
}

/// The asynchronous errors of an IA, if there were any.
fn errors(ia: &Value) -> String {
    match ia["counters"]["DCNT_IA_ASYNC_ERROR"].as_u64() {
        Some(errors @ 1..) => format!(", {errors} asynchronous errors"),
        _ => String::new(),
    }
}

/// Adds a table of objects, unless there are none.
fn table<const N: usize>(
    text: &mut String,
    objects: Vec<Object<'_>>,
    form: Form,
    heads: [&str; N],
    row: fn(&Object<'_>) -> [String; N],
) {
    if objects.is_empty() {
        return;
    }
    let rows: Vec<_> = objects.iter().take(form.rows).map(row).collect();
    text.push_str(&render(heads, &rows));
    if rows.len() < objects.len() {
        text.push_str(&format!("... {} more\n", objects.len() - rows.len()));
    }
}

fn endpoint_heads(since: Since) -> [&'static str; 15] {
    match since {
        Since::Beginning => [
            "ENDPOINT", "STATE", "PATH", "PEER", "REQUESTS", "RECEIVES", "SEND", "WRITE", "READ",
            "ATOMIC", "RECV", "OUT", "IN", "FLUSHED", "FAILED",
        ],
        _ => [
            "ENDPOINT", "STATE", "PATH", "PEER", "REQUESTS", "RECEIVES", "SEND/s", "WRITE/s",
            "READ/s", "ATOMIC/s", "RECV/s", "OUT/s", "IN/s", "FLUSHED", "FAILED",
        ],
    }
}

fn endpoint(ep: &Object<'_>) -> [String; 15] {
    let now = ep.now;
    [
        word(&now["handle"]),
        word(&now["state"]),
        word(&now["path"]),
        word(&now["peer"]),
        word(&now["requests"]),
        word(&now["receives"]),
        figure(ep, objects::SENDS),
        figure(ep, objects::WRITES),
        figure(ep, objects::READS),
        figure(ep, objects::ATOMICS),
        figure(ep, objects::RECEIVES),
        figure(ep, objects::OUT),
        figure(ep, objects::IN),
        word(&now["flushed"]),
        word(&now["failed"]),
    ]
}

fn evd_heads(since: Since) -> [&'static str; 9] {
    match since {
        Since::Beginning => [
            "EVD", "KINDS", "EVENTS", "LENGTH", "WAITER", "WAITS", "BLOCKED", "FOUND", "EMPTY",
        ],
        _ => [
            "EVD",
            "KINDS",
            "EVENTS",
            "LENGTH",
            "WAITER",
            "WAITS/s",
            "BLOCKED/s",
            "FOUND/s",
            "EMPTY/s",
        ],
    }
}

fn evd(evd: &Object<'_>) -> [String; 9] {
    let now = evd.now;
    let waiter = match now["waiting"].as_bool() {
        Some(true) => "yes",
        _ => "no",
    };
    [
        word(&now["handle"]),
        word(&now["kinds"]),
        word(&now["events"]),
        word(&now["length"]),
        waiter.to_owned(),
        figure(evd, objects::WAITS),
        figure(evd, objects::BLOCKED),
        figure(evd, objects::FOUND),
        figure(evd, objects::EMPTY),
    ]
}

const SRQ_HEADS: [&str; 5] = ["SRQ", "RECEIVES", "MAX", "OUTSTANDING", "ENDPOINTS"];

fn srq(srq: &Object<'_>) -> [String; 5] {
    [
        "handle",
        "receives",
        "max_receives",
        "outstanding",
        "endpoints",
    ]
    .map(|key| word(&srq.now[key]))
}
