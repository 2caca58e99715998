// SPDX-License-Identifier: GPL-2.0

//! Traffic between two queue pairs: every kind of message, in several sizes, with every byte checked
//! and every completion timed.

mod histogram;
mod peer;
mod results;
mod run;
mod settings;

pub(crate) use self::{
    peer::{
        Offer,
        Peer, //
    },
    results::{
        File,
        Results, //
    },
    settings::Settings,
};

use self::{
    histogram::Histogram,
    results::State,
    run::{
        Count,
        Run, //
    },
};
use crate::verbs::{
    self,
    Address,
    CallError,
    Device,
    DeviceReference,
    Job,
    Opcode,
    PathError,
    PortError,
    Request,
    Status,
    Stop, //
};
use kernel::{
    fmt,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
};

/// How long a completion may take, in nanoseconds. A queue pair gives up by itself much earlier.
const PATIENCE: u64 = 30_000_000_000;

/// Between looks at something that cannot be waited for.
const PAUSE: Delta = Delta::from_millis(100);

/// How many bytes the messages that are outstanding may have at each end.
const MEMORY_MAX: u64 = 64 << 20;

/// The largest message: as much as `kmalloc()` gives at most, everywhere.
const SIZE_MAX: u64 = 4 << 20;

/// What is sent in a test, and what follows from that: kept, as each batch asks for it.
pub(crate) struct Test {
    request: Request,
    name: &'static str,
    /// What the completion says that it was.
    opcode: Opcode,
    /// It is executed by the target's device, on one word.
    is_atomic: bool,
    has_immediate: bool,
    /// The message takes a receive of the target.
    is_received: bool,
    /// The message's data comes with the receive; else it is put where the requester says.
    is_sent: bool,
    /// The message's data comes back to the requester.
    is_returned: bool,
    /// Nothing but a read behind it tells that the data has been put where the processor sees it.
    needs_read_behind: bool,
}

impl Test {
    const ALL: [Self; 7] = [
        Self::SEND,
        Self::of(Request::SendWithImmediate),
        Self::of(Request::Write),
        Self::of(Request::WriteWithImmediate),
        Self::READ,
        Self::of(Request::CompareAndSwap),
        Self::of(Request::FetchAndAdd),
    ];
    const SEND: Self = Self::of(Request::Send);
    const READ: Self = Self::of(Request::Read);

    const fn of(request: Request) -> Self {
        let is_sent = matches!(request, Request::Send | Request::SendWithImmediate);
        let is_atomic = request.is_atomic();

        Self {
            request,
            name: match request {
                Request::Send => "send_recv",
                Request::SendWithImmediate => "send_with_imm",
                Request::Write => "rdma_write",
                Request::WriteWithImmediate => "rdma_write_with_imm",
                Request::Read => "rdma_read",
                Request::CompareAndSwap => "compare_swap",
                Request::FetchAndAdd => "fetch_add",
            },
            opcode: request.opcode(),
            is_atomic,
            has_immediate: request.has_immediate(),
            is_received: is_sent || matches!(request, Request::WriteWithImmediate),
            is_sent,
            is_returned: is_atomic || matches!(request, Request::Read),
            needs_read_behind: is_atomic || matches!(request, Request::Write),
        }
    }
}

/// What is sent: different for each test that is run, for each of its messages, and for each word of
/// those, so that nothing that was there before is taken for it.
#[derive(Clone, Copy)]
struct Pattern {
    /// The number of the test, from 1.
    number: u64,
}

impl Pattern {
    /// Returns a word of a message.
    fn word(self, message: u64, index: u64) -> u64 {
        let seed = self
            .number
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(message.wrapping_mul(0xd6e8_feb8_6659_fd93))
            .wrapping_add(index);
        let mixed = (seed ^ (seed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);

        mixed ^ (mixed >> 29)
    }

    /// Returns the immediate data of a message.
    fn immediate(self, message: u64) -> u32 {
        self.word(message, u64::MAX) as u32
    }

    /// Returns what an atomic operation makes of the first word of a message, and its operands.
    fn operation(self, test: &Test, message: u64) -> (u64, (u64, u64)) {
        let before = self.word(message, 0);
        let operand = self.word(message, 1);

        if test.request == Request::CompareAndSwap {
            (operand, (before, operand))
        } else {
            (before.wrapping_add(operand), (operand, 0))
        }
    }
}

/// Which end of the connection.
///
/// Displayed as what the names of its parameters begin with.
#[derive(Clone, Copy)]
enum Side {
    /// The device under test.
    Here,
    /// Its peer, which may be the same device.
    There,
}

impl Side {
    /// Returns what the device is called.
    fn device(self) -> &'static str {
        match self {
            Self::Here => "the device",
            Self::There => "the peer",
        }
    }

    /// Returns whose something is, to be put behind it.
    fn of(self) -> &'static str {
        match self {
            Self::Here => "",
            Self::There => " of the peer",
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Here => "",
            Self::There => "peer_",
        })
    }
}

/// Why traffic ended before it was over.
enum Failure {
    /// It was told to.
    Stopped,
    /// A function failed.
    Call(CallError),
    /// A work request was not taken.
    Post {
        of: &'static str,
        error: Error,
        /// By that the device's driver says that it has nothing of the kind, or not for the kernel.
        is_refused: bool,
    },
    /// A work request completed with an error.
    Completion {
        of: &'static str,
        message: u64,
        status: Status,
        vendor_err: u32,
        state: Option<verbs::State>,
    },
    /// A work request did not complete in time.
    Lost {
        of: &'static str,
        message: u64,
    },
    /// A work request has completed more than once.
    Repeated {
        of: &'static str,
        message: u64,
    },
    /// A completion named another queue pair than the one its work request was posted to.
    Stray {
        of: &'static str,
        message: u64,
    },
    /// A completion said that it was of another kind of work request.
    Opcode {
        message: u64,
        opcode: Opcode,
    },
    /// More or fewer bytes were received than sent.
    Length {
        message: u64,
        received: u32,
    },
    /// The immediate data was not received as it was sent.
    Immediate {
        message: u64,
        sent: Option<u32>,
        received: Option<u32>,
    },
    /// The data was not received as it was sent.
    Data {
        message: u64,
        offset: usize,
    },
    /// The queue pair was not in the state `ERR` after an error.
    State(Option<verbs::State>),
    /// A port is not there, or is down.
    Port(Side, PortError),
    /// The port has no GID with the index that it is to have.
    Gid(Side, u32),
    /// The port does not have the address any more that it had.
    GidGone(Side, Address),
    /// There is no way from one port to the other.
    NoPath,
    /// Something about the settings does not suit the device.
    Depth {
        side: Side,
        max: u32,
    },
    Size {
        size: u32,
        max: u32,
    },
    Memory,
}

/// Immediate data, if there is any.
struct Immediate(Option<u32>);

impl fmt::Display for Immediate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => f.write_fmt(fmt!("{value:#x}")),
            None => f.write_str("none"),
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl From<PathError> for Failure {
    fn from(error: PathError) -> Self {
        match error {
            PathError::NoSuchGid(index) => Self::Gid(Side::Here, index),
            PathError::OtherHasNoSuchGid(index) => Self::Gid(Side::There, index),
            PathError::NotAlike => Self::NoPath,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Call(CallError::of_memory(error))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("stopped"),
            Self::Call(CallError { function, error }) => {
                f.write_fmt(fmt!("{function} failed, ret={}", error.to_errno()))
            }
            Self::Post { of, error, .. } => f.write_fmt(fmt!(
                "ib_post_send of {of} failed, ret={}",
                error.to_errno()
            )),
            Self::Completion {
                of,
                message,
                status,
                vendor_err,
                state,
            } => {
                f.write_fmt(fmt!(
                    "message {message}: {of} completed with {status}, vendor_err {vendor_err}"
                ))?;

                match state {
                    Some(state) => f.write_fmt(fmt!(", queue pair in {state}")),
                    None => Ok(()),
                }
            }
            Self::State(state) => {
                f.write_str("after an error the queue pair is not in ERR, but in ")?;

                match state {
                    Some(state) => f.write_fmt(fmt!("{state}")),
                    None => f.write_str("an unknown state"),
                }
            }
            Self::Lost { of, message } => f.write_fmt(fmt!(
                "message {message}: {of} has not completed for {} s",
                PATIENCE / 1_000_000_000
            )),
            Self::Repeated { of, message } => f.write_fmt(fmt!(
                "message {message}: {of} has completed more than once: a completion came again, or \
                 has the wr_cqe of another"
            )),
            Self::Stray { of, message } => f.write_fmt(fmt!(
                "message {message}: the completion of {of} names another queue pair"
            )),
            Self::Opcode { message, opcode } => {
                f.write_fmt(fmt!("message {message}: completed as opcode {opcode}"))
            }
            Self::Length { message, received } => {
                f.write_fmt(fmt!("message {message}: {received} bytes received"))
            }
            Self::Immediate {
                message,
                sent,
                received,
            } => f.write_fmt(fmt!(
                "message {message}: immediate {} received as {}",
                Immediate(*sent),
                Immediate(*received)
            )),
            Self::Data { message, offset } => {
                f.write_fmt(fmt!("message {message}: wrong data from offset {offset}"))
            }
            Self::Port(side, PortError::NoSuchPort(count)) => f.write_fmt(fmt!(
                "no such port, {} has {count}; see {side}port=",
                side.device()
            )),
            Self::Port(side, PortError::Down(Some(number))) => f.write_fmt(fmt!(
                "port {number}{} is down; see that it has a link and is configured",
                side.of()
            )),
            Self::Port(side, PortError::Down(None)) => f.write_fmt(fmt!(
                "no port{} is up; see that one has a link and is configured",
                side.of()
            )),
            Self::Port(side, PortError::Query(error)) => f.write_fmt(fmt!(
                "ib_query_port{} failed, ret={}",
                side.of(),
                error.to_errno()
            )),
            Self::Gid(side, index) => f.write_fmt(fmt!(
                "the port{} has no GID with the index {index}; see {side}gid_index=",
                side.of()
            )),
            Self::GidGone(side, address) => {
                f.write_fmt(fmt!("the port{} has no GID {address} any more", side.of()))
            }
            Self::NoPath => f.write_str(
                "the ports have no addresses of the same kind (such as a RoCE v2 GID with an IPv4 \
                 address each); see gid_index= and peer_gid_index=",
            ),
            Self::Depth { side, max } => f.write_fmt(fmt!(
                "depth= is more than the {max} that {} can have",
                side.device()
            )),
            Self::Size { size, max } => f.write_fmt(fmt!(
                "sizes= has {size}, which is more than the {max} that can be sent here"
            )),
            Self::Memory => f.write_fmt(fmt!(
                "depth= messages of sizes= are more than {} MiB",
                MEMORY_MAX >> 20
            )),
        }
    }
}

/// Tells a run to stop: its own device is going, its peer is, or the module.
#[derive(Clone, Copy)]
struct Stops<'a> {
    own: &'a Stop,
    /// `None` if there is no peer.
    peer: Option<&'a Stop>,
    module: &'a Stop,
}

impl Stops<'_> {
    /// Fails if it is to stop.
    fn check(self) -> Result<(), Failure> {
        if self.own.is_raised() || self.module.is_raised() || self.peer.is_some_and(Stop::is_raised)
        {
            Err(Failure::Stopped)
        } else {
            Ok(())
        }
    }
}

/// What a line of the log begins with: the name of a device, or nothing.
#[derive(Clone, Copy)]
struct Prefix<'a>(Option<&'a CStr>);

impl<'a> Prefix<'a> {
    fn new(is_prefixed: bool, name: &'a CStr) -> Self {
        Self(is_prefixed.then_some(name))
    }
}

impl fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => f.write_fmt(fmt!("{name}: ")),
            None => Ok(()),
        }
    }
}

/// The traffic of one device.
pub(crate) struct Traffic {
    settings: Arc<Settings>,
    device: DeviceReference,
    name: CString,
    /// Each line of the log begins with the name.
    is_prefixed: bool,
    peer: Option<Arc<Peer>>,
    module_stop: Stop,
    results: Arc<Mutex<Results>>,
    histograms: Histograms,
}

/// What is measured of each test, while it is running; see [`results::Measured`].
struct Histograms {
    latencies: Histogram,
    deliveries: Histogram,
}

impl Histograms {
    /// Makes empty ones.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn new() -> impl Init<Self, Error> {
        try_init!(Self {
            latencies: Histogram::new()?,
            deliveries: Histogram::new()?,
        })
    }
}

impl Traffic {
    /// Makes the traffic of a device, with itself if there is no peer; its results are those that
    /// the file shows. If it `is_prefixed`, each line of the log begins with the device's name.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(
        settings: Arc<Settings>,
        device: DeviceReference,
        name: CString,
        is_prefixed: bool,
        peer: Option<Arc<Peer>>,
        module_stop: Stop,
        File(results): File,
    ) -> impl Init<Self, Error> {
        // In its place: it is large for the stack.
        try_init!(Self {
            histograms <- Histograms::new(),
            results,
            settings,
            device,
            name,
            is_prefixed,
            peer,
            module_stop,
        })
    }
}

impl Job for Traffic {
    fn run(&mut self, stop: &Stop) {
        let here = self.device.clone();
        let module_stop = self.module_stop.clone();
        let stops = Stops {
            own: stop,
            peer: None,
            module: &module_stop,
        };

        let (state, reason) = match self.peer.clone() {
            None => here.with(|here| self.between(here, here, stops)),
            Some(peer) => match self.wait_for(&peer, stops) {
                Some((there, gone)) => here.with(|here| {
                    let stops = Stops {
                        peer: Some(&gone),
                        ..stops
                    };

                    there.with(|there| self.between(here, there, stops))
                }),
                None => (State::Stopped, None),
            },
        };

        self.end(state, reason);
    }

    fn called_off(&mut self) {
        self.end(State::Stopped, None);
    }
}

impl Traffic {
    /// Says, and keeps, how it went.
    fn end(&self, state: State, reason: Option<Arc<CString>>) {
        let prefix = Prefix::new(self.is_prefixed, &self.name);

        // The results first: whoever waits for the line looks at them next.
        self.results.lock().end(state, reason.clone());

        match (state, reason) {
            (State::Success, _) => pr_info!("{prefix}traffic smoke success\n"),
            (State::Failed, Some(reason)) => {
                pr_err!("{prefix}traffic smoke failed: {}\n", &**reason);
            }
            (State::Skipped, Some(reason)) => {
                pr_info!("{prefix}traffic smoke skipped: {}\n", &**reason);
            }
            (state, _) => pr_info!("{prefix}traffic smoke {}\n", state.name()),
        }
    }

    /// Returns the peer as soon as it is there; `None` if told to stop before that.
    fn wait_for(&self, peer: &Peer, stops: Stops<'_>) -> Option<(DeviceReference, Stop)> {
        let mut is_said = false;

        while stops.check().is_ok() {
            if let Some(current) = peer.current() {
                return Some(current);
            }

            // One that was there when the module was loaded may only be the next.
            fsleep(PAUSE);

            if !is_said && peer.current().is_none() {
                pr_notice!(
                    "{}no RDMA device is named {}, traffic waits for it\n",
                    Prefix::new(self.is_prefixed, &self.name),
                    peer.name()
                );
                is_said = true;
            }
        }

        None
    }

    /// Runs everything between two devices, which may be the same; returns how that went, and why.
    fn between(
        &mut self,
        here: Device<'_>,
        there: Device<'_>,
        stops: Stops<'_>,
    ) -> (State, Option<Arc<CString>>) {
        if here.is_iwarp() || there.is_iwarp() {
            return (
                State::Skipped,
                text(fmt!("iWARP needs the connection manager")),
            );
        }

        let names = [
            &*self.name,
            self.peer.as_ref().map_or(&*self.name, |peer| peer.name()),
        ];

        if !there.capabilities().fast_registration {
            return (
                State::Skipped,
                text(fmt!(
                    "the driver of {} has no fast registration of memory \
                     (IB_DEVICE_MEM_MGT_EXTENSIONS)",
                    names[1]
                )),
            );
        }

        let mut run = Run::new(
            &self.settings,
            Prefix::new(self.is_prefixed, &self.name),
            names,
            &self.results,
            &mut self.histograms,
            (here, there),
            stops,
        );
        let ended = run.all();
        let Count {
            tests,
            failures,
            first,
        } = run.count();

        match ended {
            Err(Failure::Stopped) if failures == 0 => (State::Stopped, None),
            Err(failure) if failures == 0 => (State::Failed, text(fmt!("{failure}"))),
            Ok(()) if failures == 0 => (State::Success, None),
            ended => {
                let first = first.as_deref().unwrap_or(c"see above");
                let text = match ended {
                    Ok(()) => text(fmt!("{failures} of {tests} tests, first {first}")),
                    Err(last) => text(fmt!(
                        "{failures} of {tests} tests, first {first}; then {last}"
                    )),
                };

                (State::Failed, text)
            }
        }
    }
}

/// Returns a text; none if there is no memory for it.
fn text(what: fmt::Arguments<'_>) -> Option<Arc<CString>> {
    Arc::new(CString::try_from_fmt(what).ok()?, GFP_KERNEL).ok()
}
