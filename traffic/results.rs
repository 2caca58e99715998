// SPDX-License-Identifier: GPL-2.0

//! What came of the traffic, for `results` in debugfs, as JSON; the schema is in
//! `tests/results.schema.json`.

use super::{
    histogram::Summary,
    settings::{
        Settings,
        SIZES_MAX, //
    },
    Test, //
};
use crate::verbs::{
    ib_core::{
        kernel_release,
        BuiltFor, //
    },
    Address,
    PollContext, //
};
use kernel::{
    alloc::KVVec,
    fmt, new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    },
};

/// How many tests there can be, with those of connections and of errors.
const LINES_MAX: usize = Test::ALL.len() * SIZES_MAX + 2;

/// One end of the connection.
pub(super) struct End {
    pub(super) device: CString,
    pub(super) firmware: CString,
    pub(super) port: u32,
    pub(super) mtu: u32,
    pub(super) address: Address,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_fmt(fmt!(
            "{} port {} (MTU {}, GID {})",
            &*self.device,
            self.port,
            self.mtu,
            self.address
        ))
    }
}

/// What was measured in a test, in nanoseconds.
pub(super) struct Measured {
    /// The time during which messages were on their way.
    pub(super) elapsed: u64,
    /// From the call that posts a message until its completion at the requester.
    pub(super) latencies: Summary,
    /// From that call until the completion of its receive at the target, if it has one.
    pub(super) deliveries: Option<Summary>,
}

/// What a test is of.
#[derive(Clone, Copy)]
pub(super) enum Of {
    /// Messages, of how many bytes, and how many of them.
    Messages { size: u32, count: u32 },
    /// As many connections.
    Connections(u32),
}

/// How a test ended.
pub(super) enum Outcome {
    Good(Measured),
    /// Everything was connected, in as many nanoseconds.
    Connected(u64),
    /// Requests were flushed, as they had to be.
    Flushed(u32),
    /// Why it failed.
    Bad(CString),
    /// Why it could not be run.
    Skipped(CString),
}

/// A test that has been run.
struct Line {
    test: &'static str,
    of: Of,
    outcome: Outcome,
}

/// How the whole stands.
#[derive(Clone, Copy)]
pub(super) enum State {
    Running,
    Success,
    Failed,
    Skipped,
    Stopped,
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Success => "success",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Stopped => "stopped",
        }
    }
}

/// All results of one device.
pub(crate) struct Results {
    context: PollContext,
    depth: u32,
    state: State,
    reason: Option<Arc<CString>>,
    ends: Option<[End; 2]>,
    lines: KVVec<Line>,
}

impl Results {
    /// Makes those of traffic that has not begun.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(context: PollContext, depth: u32) -> Result<Arc<Mutex<Self>>> {
        let lines = KVVec::with_capacity(LINES_MAX, GFP_KERNEL)?;

        Arc::pin_init(
            // In its place: it is large for the stack.
            new_mutex!(init!(Self {
                context,
                depth,
                state: State::Running,
                reason: None,
                ends: None,
                lines,
            })),
            GFP_KERNEL,
        )
    }

    pub(super) fn begin(&mut self, ends: [End; 2]) {
        self.ends = Some(ends);
    }

    /// Adds the result of a test.
    pub(super) fn add(&mut self, test: &'static str, of: Of, outcome: Outcome) {
        let line = Line { test, of, outcome };

        // There is room.
        let _ = self.lines.push_within_capacity(line);
    }

    pub(super) fn end(&mut self, state: State, reason: Option<Arc<CString>>) {
        self.state = state;
        self.reason = reason;
    }
}

/// The contents of the file: the results as they are when it is read.
#[derive(Clone)]
pub(crate) struct File(pub(super) Arc<Mutex<Results>>);

impl File {
    /// Makes that of traffic that has not begun.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(settings: &Settings) -> Result<Self> {
        Ok(Self(Results::new(
            settings.context,
            settings.outstanding(),
        )?))
    }
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let results = self.0.lock();

        f.write_str("{\n  \"version\": 1,\n  \"kernel\": ")?;
        text(f, kernel_release())?;
        f.write_str(",\n  \"ib_core\": ")?;
        text(f, BuiltFor)?;
        f.write_fmt(fmt!(
            ",\n  \"poll\": \"{}\",\n  \"depth\": {},\n  \"state\": \"{}\"",
            match results.context {
                PollContext::Direct => "direct",
                PollContext::Workqueue => "workqueue",
            },
            results.depth,
            results.state.name(),
        ))?;

        if let Some(reason) = &results.reason {
            f.write_str(",\n  \"reason\": ")?;
            text(f, &***reason)?;
        }

        f.write_str(",\n  \"ends\": [")?;

        let mut separator = "";

        for end in results.ends.iter().flatten() {
            f.write_fmt(fmt!("{separator}\n    {{\"device\": "))?;
            text(f, &*end.device)?;
            f.write_str(", \"firmware\": ")?;
            text(f, &*end.firmware)?;
            f.write_fmt(fmt!(
                ", \"port\": {}, \"mtu\": {}, \"gid_index\": {}, \"gid\": \"{}\"}}",
                end.port,
                end.mtu,
                end.address.gid_index(),
                end.address
            ))?;
            separator = ",";
        }

        f.write_str("\n  ],\n  \"tests\": [")?;
        separator = "";

        for line in results.lines.iter() {
            f.write_fmt(fmt!("{separator}\n    {{\"test\": \"{}\", ", line.test))?;

            match line.of {
                Of::Messages { size, count } => {
                    f.write_fmt(fmt!("\"size\": {size}, \"messages\": {count}, "))?;
                }
                Of::Connections(count) => f.write_fmt(fmt!("\"connections\": {count}, "))?,
            }

            line.outcome.write(f)?;
            f.write_str("}")?;
            separator = ",";
        }

        f.write_str("\n  ]\n}\n")
    }
}

impl Outcome {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Good(measured) => {
                f.write_fmt(fmt!(
                    "\"elapsed_ns\": {}, \"latency_ns\": ",
                    measured.elapsed
                ))?;
                summary(f, &measured.latencies)?;

                match &measured.deliveries {
                    Some(deliveries) => {
                        f.write_str(", \"delivery_ns\": ")?;
                        summary(f, deliveries)
                    }
                    None => Ok(()),
                }
            }
            Self::Connected(elapsed) => f.write_fmt(fmt!("\"elapsed_ns\": {elapsed}")),
            Self::Flushed(count) => f.write_fmt(fmt!("\"flushed\": {count}")),
            Self::Bad(error) => {
                f.write_str("\"error\": ")?;
                text(f, &**error)
            }
            Self::Skipped(reason) => {
                f.write_str("\"skipped\": ")?;
                text(f, &**reason)
            }
        }
    }
}

/// Writes what is kept of a histogram.
fn summary(f: &mut fmt::Formatter<'_>, summary: &Summary) -> fmt::Result {
    f.write_fmt(fmt!(
        "{{\"min\": {}, \"p50\": {}, \"p99\": {}, \"p99.9\": {}, \"max\": {}, \"histogram\": [",
        summary.min,
        summary.percentile(500),
        summary.percentile(990),
        summary.percentile(999),
        summary.max
    ))?;

    let mut separator = "";

    for bucket in summary.buckets.iter() {
        f.write_fmt(fmt!(
            "{separator}[{}, {}, {}]",
            bucket.lower,
            bucket.upper,
            bucket.count
        ))?;
        separator = ", ";
    }

    f.write_str("]}")
}

/// Writes a string of JSON, whatever is in it.
fn text(f: &mut fmt::Formatter<'_>, value: impl fmt::Display) -> fmt::Result {
    f.write_str("\"")?;
    fmt::Write::write_fmt(&mut Escaped(f), fmt!("{value}"))?;
    f.write_str("\"")
}

struct Escaped<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|char| match char {
            '"' | '\\' => self.0.write_fmt(fmt!("\\{char}")),
            '\0'..='\x1f' => self.0.write_fmt(fmt!("\\u{:04x}", u32::from(char))),
            _ => fmt::Write::write_char(self.0, char),
        })
    }
}
