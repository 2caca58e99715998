// SPDX-License-Identifier: GPL-2.0

//! The tests, one after another, between two endpoints.
//!
//! Messages go in batches of `depth`: a batch is posted by one call, all of its completions are
//! waited for, and then it is checked. The latency of a message is the time from just before its
//! batch is posted until its completion at the requester is taken from the queue: with more than one
//! outstanding, it includes the wait for those before it. What is filled in before, and what is
//! checked afterwards, is in neither the latencies nor the rates.

use super::{
    results::{
        End,
        Measured,
        Of,
        Outcome,
        Results, //
    },
    settings::Settings,
    Failure,
    Histograms,
    Pattern,
    Prefix,
    Side,
    Stops,
    Test,
    MEMORY_MAX,
    PATIENCE,
    PAUSE,
    SIZE_MAX, //
};
use crate::{
    smoke::Smoke,
    verbs::{
        self,
        is_unsupported,
        now,
        relax,
        Address,
        CompletionQueue,
        CompletionQueueAttributes,
        Consumer,
        Device,
        Endpoint,
        EndpointAttributes,
        Event,
        Opcode,
        PollContext,
        Port,
        PortError,
        ProtectionDomain,
        QueuePairAttributes,
        QueuePairs,
        Request,
        Room,
        State,
        Status,
        WorkCompletion, //
    },
};
use kernel::{
    fmt,
    page::PAGE_SIZE,
    prelude::*,
    str::CString,
    sync::Mutex,
    time::{
        delay::fsleep,
        Delta, //
    },
};

/// How long to wait for a port that has gone down to come up again, in nanoseconds.
const PATIENCE_FOR_PORT: u64 = 60_000_000_000;

/// How long to wait for what has made others fail, in nanoseconds, if nothing else completes: it may
/// never come.
const PATIENCE_FOR_CAUSE: u64 = 1_000_000_000;

/// Between looks at what comes after a failure.
const PAUSE_AFTER_FAILURE: Delta = Delta::from_millis(1);

/// How many times to poll between looks at the clock.
const POLLS: u32 = 8;

/// After how many bytes of a batch, which may be of [`MEMORY_MAX`], to look whether to stop.
const BYTES: usize = 1 << 20;

/// Of queue pairs that are connected, and nothing more.
const CONNECTED: QueuePairAttributes = QueuePairAttributes {
    send_work_requests: 1,
    receive_work_requests: 1,
    send_sges: 1,
    receive_sges: 1,
};

/// The user of the verbs.
pub(super) struct Wire;

impl Consumer for Wire {
    const NAME: &'static CStr = Smoke::NAME;

    fn completion() {}

    fn cq_event(event: Event) {
        Smoke::cq_event(event);
    }

    fn qp_event(event: Event) {
        Smoke::qp_event(event);
    }

    fn destroyed(function: &'static str, result: Result) {
        // Nobody has asked.
        if result.is_err() {
            Smoke::destroyed(function, result);
        }
    }
}

/// Between which ports there is traffic, and by which addresses.
struct Route<'d, 'p> {
    here: (Port<'d>, Address),
    there: (Port<'p>, Address),
    /// The size of the largest message in bytes.
    limit: u32,
}

/// Finds the port and the address of an end again.
fn end_again<'e>(
    side: Side,
    device: Device<'e>,
    (port, address): &(Port<'e>, Address),
) -> Result<(Port<'e>, Address), Failure> {
    let port =
        Port::find(device, Some(port.number())).map_err(|error| Failure::Port(side, error))?;

    match port.again(address) {
        Some(address) => Ok((port, address)),
        None => Err(Failure::GidGone(side, *address)),
    }
}

/// Two endpoints that are connected; not on the stack, for which they are too large.
struct Pair<'d, 'p> {
    requester: KBox<Endpoint<'d, Wire>>,
    target: KBox<Endpoint<'p, Wire>>,
    /// The target's memory is open to the requester.
    is_open: bool,
}

impl Pair<'_, '_> {
    /// Returns 0 if all work requests have completed, and a negative number if something has gone
    /// wrong: the pair is good for nothing then.
    fn left(&self) -> i32 {
        // Negative if either is, and 0 if both are.
        self.requester.left() | self.target.left()
    }

    /// How many work requests have not completed.
    fn outstanding(&self) -> i32 {
        self.requester
            .outstanding()
            .saturating_add(self.target.outstanding())
    }
}

/// How many tests have been run, and have failed.
pub(super) struct Count {
    pub(super) tests: u32,
    pub(super) failures: u32,
    /// What failed first.
    pub(super) first: Option<CString>,
}

/// The traffic of one device, while it is running.
pub(super) struct Run<'a, 'd, 'p> {
    settings: &'a Settings,
    prefix: Prefix<'a>,
    names: [&'a CStr; 2],
    results: &'a Mutex<Results>,
    histograms: &'a mut Histograms,
    here: Device<'d>,
    there: Device<'p>,
    stops: Stops<'a>,
    count: Count,
}

impl<'a, 'd, 'p> Run<'a, 'd, 'p> {
    pub(super) fn new(
        settings: &'a Settings,
        prefix: Prefix<'a>,
        names: [&'a CStr; 2],
        results: &'a Mutex<Results>,
        histograms: &'a mut Histograms,
        (here, there): (Device<'d>, Device<'p>),
        stops: Stops<'a>,
    ) -> Self {
        Self {
            settings,
            prefix,
            names,
            results,
            histograms,
            here,
            there,
            stops,
            count: Count {
                tests: 0,
                failures: 0,
                first: None,
            },
        }
    }

    /// Returns what was counted.
    pub(super) fn count(self) -> Count {
        self.count
    }

    /// Runs all tests.
    ///
    /// # Errors
    ///
    /// What it could not go on after. A test that fails is counted, and it goes on with a new
    /// connection.
    pub(super) fn all(&mut self) -> Result<(), Failure> {
        let route = self.route()?;
        let settings = self.settings;
        let mut pair = self.connect(&route)?;

        self.announce(&route)?;

        if settings.connections > 0 {
            self.try_connections(&route, settings.connections)?;
        }

        for test in &Test::ALL {
            if test.is_atomic {
                if self.here.capabilities().atomics && self.there.capabilities().atomics {
                    pair = self.try_test(pair, test, Self::WORD, &route)?;
                }

                continue;
            }

            let mut former = None;

            for size in settings.sizes() {
                let size = size.min(route.limit);

                // Of the default sizes several may be more than the device can have.
                if settings.is_bounded && former == Some(size) {
                    continue;
                }

                former = Some(size);
                pair = self.try_test(pair, test, size, &route)?;
            }
        }

        if settings.errors {
            pair = self.cause_error(pair, &route)?;
        }

        self.close(&mut pair)
    }

    /// What an atomic operation is about, in bytes.
    const WORD: u32 = size_of::<u64>() as u32;

    /// Finds a route that goes with the settings.
    fn route(&self) -> Result<Route<'d, 'p>, Failure> {
        let [here, there] = &self.settings.ends;
        let first =
            Port::find(self.here, here.port).map_err(|error| Failure::Port(Side::Here, error))?;
        // Nobody would look for another port on the same device than the one that was given.
        let same_port = self.here.is(self.there).then_some(first.number());
        let second = Port::find(self.there, there.port.or(same_port))
            .map_err(|error| Failure::Port(Side::There, error))?;
        // Nor for another address on the same port.
        let same_index = if first.is(&second) {
            here.gid_index
        } else {
            None
        };
        let addresses = first.addresses(&second, here.gid_index, there.gid_index.or(same_index))?;
        let limit = self.limit(&first, &second)?;

        Ok(Route {
            here: (first, addresses.0),
            there: (second, addresses.1),
            limit,
        })
    }

    /// Finds a route again: the same ports and addresses, as they are now.
    fn route_again(&self, route: &Route<'d, 'p>) -> Result<Route<'d, 'p>, Failure> {
        Ok(Route {
            here: end_again(Side::Here, self.here, &route.here)?,
            there: end_again(Side::There, self.there, &route.there)?,
            limit: route.limit,
        })
    }

    /// Returns the size of the largest message, if the settings go with the devices.
    fn limit(&self, first: &Port<'d>, second: &Port<'p>) -> Result<u32, Failure> {
        let settings = self.settings;
        let here = self.here.capabilities();
        let there = self.there.capabilities();

        for (side, capabilities) in [(Side::Here, &here), (Side::There, &there)] {
            let max = EndpointAttributes::max_depth(capabilities);

            if settings.depth > max {
                return Err(Failure::Depth { side, max });
            }
        }

        let max = u64::from(there.registered_pages)
            .saturating_mul(PAGE_SIZE as u64)
            .min(first.max_message_size().into())
            .min(second.max_message_size().into())
            .min(SIZE_MAX) as u32;
        // A buffer is of whole pages, and `kmalloc()` takes the next power of two.
        let memory = MEMORY_MAX
            .checked_div(settings.outstanding().into())
            .and_then(u64::checked_ilog2)
            .map_or(0, |shift| 1u64.wrapping_shl(shift)) as u32;
        let largest = settings.sizes().max().unwrap_or(0);

        if (memory as usize) < PAGE_SIZE {
            return Err(Failure::Memory);
        }

        if !settings.is_bounded {
            if largest > max {
                return Err(Failure::Size { size: largest, max });
            }

            if largest > memory {
                return Err(Failure::Memory);
            }
        }

        Ok(largest.min(max).min(memory).max(Self::WORD))
    }

    /// Makes two endpoints and connects them.
    fn connect(&self, route: &Route<'d, 'p>) -> Result<Pair<'d, 'p>, Failure> {
        let mut attributes = EndpointAttributes {
            depth: self.settings.outstanding(),
            size: route.limit as usize,
            context: self.settings.context,
            is_target: false,
        };

        if !attributes.pair_is_affordable() {
            return Err(ENOMEM.into());
        }

        let mut requester = self.endpoint(self.here, &attributes)?;
        attributes.is_target = true;
        let mut target = self.endpoint(self.there, &attributes)?;

        // First the one that is to be ready when the first message comes.
        target.connect(&route.there, &route.here, &requester)?;
        requester.connect(&route.here, &route.there, &target)?;

        Ok(Pair {
            requester,
            target,
            is_open: false,
        })
    }

    /// Makes an endpoint, unless told to stop.
    fn endpoint<'e>(
        &self,
        device: Device<'e>,
        attributes: &EndpointAttributes,
    ) -> Result<KBox<Endpoint<'e, Wire>>, Failure> {
        let goes_on = || self.stops.check().is_ok();

        Endpoint::create(device, attributes, goes_on).or_else(|error| {
            // It has not failed if it was called off.
            self.stops.check()?;
            Err(error.into())
        })
    }

    /// Makes as many connections and says how long that took.
    ///
    /// # Errors
    ///
    /// `Stopped`, or that there is no memory.
    fn try_connections(&mut self, route: &Route<'d, 'p>, count: u32) -> Result<(), Failure> {
        const TEST: &str = "connect";
        let of = Of::Connections(count);

        self.count.tests = self.count.tests.saturating_add(1);

        match self.make_connections(route, count as usize) {
            Ok(elapsed) => {
                let rate = u64::from(count).saturating_mul(1_000_000_000);

                pr_info!(
                    "{}{TEST}: {count} ok, {} per second\n",
                    self.prefix,
                    rate.checked_div(elapsed).unwrap_or(0)
                );
                self.results
                    .lock()
                    .add(TEST, of, Outcome::Connected(elapsed));
                Ok(())
            }
            Err(Failure::Stopped) => Err(Failure::Stopped),
            Err(failure) => {
                pr_err!("{}{TEST}: failed, {failure}\n", self.prefix);
                Ok(self.fail(&TEST, TEST, of, &failure)?)
            }
        }
    }

    /// Makes queue pairs at both ends and connects them; returns how long that took, from the first
    /// call that creates one until all of them are in the state `RTS`.
    fn make_connections(&self, route: &Route<'d, 'p>, count: usize) -> Result<u64, Failure> {
        let mut requesters = queue_pairs(self.here, count)?;
        let mut targets = queue_pairs(self.there, count)?;
        let mut index = 0usize;
        let start = now();

        self.fill(&mut requesters, count)?;
        self.fill(&mut targets, count)?;

        while index < count {
            self.stops.check()?;
            targets
                .connect(index, &route.there, &route.here, &requesters)
                .map_err(verbs::of("ib_modify_qp"))?;
            requesters
                .connect(index, &route.here, &route.there, &targets)
                .map_err(verbs::of("ib_modify_qp"))?;
            index = index.wrapping_add(1);
        }

        Ok(now().saturating_sub(start))
    }

    /// Creates queue pairs until there are `count`, unless told to stop.
    fn fill(&self, queue_pairs: &mut QueuePairs<'_, Wire>, count: usize) -> Result<(), Failure> {
        while queue_pairs.len() < count {
            self.stops.check()?;
            queue_pairs
                .create(queue_pairs.len().saturating_add(1), &CONNECTED)
                .map_err(verbs::of("ib_create_qp"))?;
        }

        Ok(())
    }

    /// Says, and keeps, between what there is traffic.
    fn announce(&self, route: &Route<'d, 'p>) -> Result<(), Failure> {
        let [here, there] = self.ends(route)?;

        pr_info!("{}traffic from {here} to {there}\n", self.prefix);
        self.results.lock().begin([here, there]);

        Ok(())
    }

    /// Returns how the ends of a route are called.
    fn ends(&self, route: &Route<'d, 'p>) -> Result<[End; 2]> {
        Ok([
            end(self.names[0], self.here, &route.here)?,
            end(self.names[1], self.there, &route.there)?,
        ])
    }

    /// Runs a test and says how it went; returns a pair for the next one.
    ///
    /// # Errors
    ///
    /// `Stopped`, or that there cannot be another connection.
    fn try_test(
        &mut self,
        mut pair: Pair<'d, 'p>,
        test: &Test,
        size: u32,
        route: &Route<'d, 'p>,
    ) -> Result<Pair<'d, 'p>, Failure> {
        let depth = self.settings.outstanding();
        let messages = self.settings.messages;
        let title = Title { test, size, depth };
        let of = Of::Messages {
            size,
            count: messages,
        };

        self.count.tests = self.count.tests.saturating_add(1);

        match self.test(&mut pair, test, size, messages) {
            Ok(measured) => {
                pr_info!(
                    "{}{title}: {messages} ok, {}\n",
                    self.prefix,
                    Figures {
                        measured: &measured,
                        messages,
                        size,
                    }
                );
                self.results
                    .lock()
                    .add(test.name, of, Outcome::Good(measured));
                Ok(pair)
            }
            Err(Failure::Stopped) => Err(Failure::Stopped),
            // Some drivers, such as mlx5, have atomics for user space only, but tell that they have.
            Err(
                failure @ Failure::Post {
                    is_refused: true, ..
                },
            ) if test.is_atomic => {
                pr_info!("{}{title}: skipped, {failure}\n", self.prefix);
                self.results
                    .lock()
                    .add(test.name, of, Outcome::Skipped(text(&failure)?));
                self.reconnect(pair, route)
            }
            Err(failure) => {
                pr_err!("{}{title}: failed, {failure}\n", self.prefix);
                self.fail(&title, test.name, of, &failure)?;
                self.reconnect(pair, route)
            }
        }
    }

    /// Counts and keeps a failure.
    fn fail(
        &mut self,
        title: &dyn fmt::Display,
        test: &'static str,
        of: Of,
        failure: &Failure,
    ) -> Result {
        self.count.failures = self.count.failures.saturating_add(1);

        if self.count.first.is_none() {
            self.count.first = CString::try_from_fmt(fmt!("{title}: {failure}")).ok();
        }

        self.results
            .lock()
            .add(test, of, Outcome::Bad(text(failure)?));
        Ok(())
    }

    /// Takes a pair that is good for nothing any more, and makes a new one. While it is the link's
    /// fault that there is none, that has some time to come up, with its addresses.
    fn reconnect(
        &self,
        pair: Pair<'d, 'p>,
        route: &Route<'d, 'p>,
    ) -> Result<Pair<'d, 'p>, Failure> {
        drop(pair);
        let start = now();
        let mut was_up = false;

        loop {
            // Addresses may go a little later than the link.
            fsleep(PAUSE);
            self.stops.check()?;

            let failure = match self.connect_again(route) {
                Ok(pair) => return Ok(pair),
                Err(failure) => failure,
            };

            // Also if it was there first, and has gone since.
            let is_down = matches!(
                self.route_again(route),
                Err(Failure::Port(_, PortError::Down(_)) | Failure::GidGone(..))
            );

            // One that is there may have come back since the failure: it has a second try.
            if !is_down && was_up || now().saturating_sub(start) > PATIENCE_FOR_PORT {
                return Err(failure);
            }

            was_up = !is_down;
        }
    }

    /// Connects two endpoints between the same ports and addresses as before.
    fn connect_again(&self, route: &Route<'d, 'p>) -> Result<Pair<'d, 'p>, Failure> {
        let route = self.route_again(route)?;
        let pair = self.connect(&route)?;

        // The MTU may be another one.
        let ends = self.ends(&route)?;

        self.results.lock().begin(ends);
        Ok(pair)
    }

    /// Runs a test; returns what was measured.
    fn test(
        &mut self,
        pair: &mut Pair<'d, 'p>,
        test: &Test,
        size: u32,
        messages: u32,
    ) -> Result<Measured, Failure> {
        let mut elapsed = 0u64;
        let mut first = 0u64;
        let mut prepared = 0;
        let pattern = Pattern {
            number: self.count.tests.into(),
        };

        self.histograms.latencies.clear();
        self.histograms.deliveries.clear();
        self.open(pair, test)?;

        let messages = u64::from(messages);
        let depth = u64::from(self.settings.outstanding());

        while first < messages {
            let count = messages.wrapping_sub(first).min(depth);

            if count != prepared {
                prepare(pair, test, count as usize, size as usize);
                prepared = count;
            }

            self.stops.check()?;
            elapsed =
                elapsed.wrapping_add(self.batch(pair, test, pattern, first, size as usize)?);
            first = first.wrapping_add(count);
        }

        let deliveries = &self.histograms.deliveries;

        Ok(Measured {
            elapsed,
            latencies: self.histograms.latencies.summary()?,
            deliveries: test.is_received.then(|| deliveries.summary()).transpose()?,
        })
    }

    /// Sends a batch that has been prepared, and checks what comes of it; returns how long it took.
    fn batch(
        &mut self,
        pair: &mut Pair<'d, 'p>,
        test: &Test,
        pattern: Pattern,
        first: u64,
        size: usize,
    ) -> Result<u64, Failure> {
        fill(pair, test, pattern, first, size, self.stops)?;

        let is_lost =
            cfg!(krdma_smoke_bug = "lost-receive") && test.request == Request::SendWithImmediate;

        if test.is_received && !is_lost {
            pair.target
                .post_receives()
                .map_err(verbs::of("ib_post_recv"))?;
        }

        let start = now();

        pair.requester
            .post()
            .map_err(|error| not_posted(test, first, error))?;
        self.settle(pair, test.name, first)?;

        #[cfg(krdma_smoke_bug = "corrupt-byte")]
        for contents in pair.target.contents(usize::from(!test.is_atomic), size) {
            contents.fill(|index| pattern.word(first, index) ^ u64::from(index == 2));
        }

        let end = self.take_completions(pair, test, first, start)?;

        if test.is_received {
            self.take_receives(pair, test, pattern, first, size, start)?;
        }

        check(pair, test, pattern, first, size, self.stops)?;

        Ok(end.saturating_sub(start))
    }

    /// Checks and counts the completions of a batch that was posted at `start`; returns when the last
    /// was taken.
    fn take_completions(
        &mut self,
        pair: &Pair<'d, 'p>,
        test: &Test,
        first: u64,
        start: u64,
    ) -> Result<u64, Failure> {
        let mut message = first;
        let mut end = start;

        for completion in pair.requester.good_completions() {
            if completion.opcode != test.opcode {
                return Err(Failure::Opcode {
                    message,
                    opcode: completion.opcode,
                });
            }

            let latencies = &mut self.histograms.latencies;

            latencies.record(completion.time.wrapping_sub(start));
            end = end.max(completion.time);
            message = message.wrapping_add(1);
        }

        // One has completed once more in the meantime.
        if message != first.wrapping_add(pair.requester.messages() as u64) {
            return Err(diagnose(pair, test.name, first));
        }

        Ok(end)
    }

    /// As [`Self::take_completions()`], of the receives.
    fn take_receives(
        &mut self,
        pair: &Pair<'d, 'p>,
        test: &Test,
        pattern: Pattern,
        first: u64,
        size: usize,
        start: u64,
    ) -> Result<(), Failure> {
        let mut message = first;
        let opcode = if test.is_sent {
            Opcode::RECV
        } else {
            Opcode::RECV_RDMA_WITH_IMM
        };

        for completion in pair.target.good_receives() {
            if completion.opcode != opcode {
                return Err(Failure::Opcode {
                    message,
                    opcode: completion.opcode,
                });
            }

            if completion.byte_len as usize != size {
                return Err(Failure::Length {
                    message,
                    received: completion.byte_len,
                });
            }

            let sent = test.has_immediate.then(|| pattern.immediate(message));

            if completion.immediate != sent {
                return Err(Failure::Immediate {
                    message,
                    sent,
                    received: completion.immediate,
                });
            }

            let deliveries = &mut self.histograms.deliveries;

            deliveries.record(completion.time.wrapping_sub(start));
            message = message.wrapping_add(1);
        }

        // One has completed once more in the meantime.
        if message != first.wrapping_add(pair.requester.messages() as u64) {
            return Err(diagnose(pair, test.name, first));
        }

        Ok(())
    }

    /// Waits until everything that was posted has completed.
    ///
    /// # Errors
    ///
    /// Also if one of it has failed; the pair is good for nothing then.
    fn settle(
        &self,
        pair: &mut Pair<'d, 'p>,
        what: &'static str,
        first: u64,
    ) -> Result<(), Failure> {
        let left = self.wait(pair, PATIENCE, |pair| {
            let left = pair.left();

            (left <= 0).then_some(left)
        })?;

        if left == Some(0) {
            return Ok(());
        }

        if left.is_some() {
            // What was flushed was so for another one's failure, which may come later; as may the
            // state that goes with it.
            self.wait(pair, PATIENCE_FOR_CAUSE, |pair| {
                match cause(pair, what, first) {
                    Some(Failure::Completion { state, .. }) => state == Some(State::ERR),
                    Some(_) => true,
                    None => pair.outstanding() == 0,
                }
                .then_some(())
            })?;
        }

        Err(diagnose(pair, what, first))
    }

    /// Takes completions until there is what is waited for, and returns that; `None` if nothing has
    /// completed for longer than `patience`, in nanoseconds.
    fn wait<T>(
        &self,
        pair: &Pair<'d, 'p>,
        patience: u64,
        look: impl Fn(&Pair<'d, 'p>) -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        let mut since = 0;
        let mut outstanding = None;
        let mut is_late = false;
        let mut polls = 0u32;

        loop {
            pair.requester.poll();
            pair.target.poll();

            if let Some(found) = look(pair) {
                return Ok(Some(found));
            }

            if pair.left() < 0 {
                // Nothing is measured any more.
                fsleep(PAUSE_AFTER_FAILURE);
            } else {
                // A driver that is software may need this processor to get on.
                relax();
            }

            polls = polls.wrapping_add(1);

            if self.settings.context == PollContext::Direct && polls < POLLS {
                continue;
            }

            polls = 0;
            self.stops.check()?;

            let now = now();
            let left = Some(pair.outstanding());

            if left != outstanding {
                outstanding = left;
                since = now;
                is_late = false;
            }

            if is_late {
                return Ok(None);
            }

            // Once more then: it may be that it was this thread that had to wait.
            is_late = now.saturating_sub(since) > patience;
        }
    }

    /// Opens the target's memory to the requester, under new keys, for what a test does to it.
    fn open(&self, pair: &mut Pair<'d, 'p>, test: &Test) -> Result<(), Failure> {
        const WHAT: &str = "IB_WR_REG_MR";

        self.close(pair)?;
        pair.target
            .prepare_registrations(test.request, test.needs_read_behind);
        pair.target.post().map_err(|error| {
            // mlx5 says that it cannot open memory for some things by `EINVAL`.
            Failure::Post {
                of: WHAT,
                error,
                is_refused: is_unsupported(error) || error == EINVAL,
            }
        })?;
        self.settle(pair, WHAT, 0)?;
        pair.is_open = true;

        Ok(())
    }

    /// Closes the target's memory, if it is open.
    fn close(&self, pair: &mut Pair<'d, 'p>) -> Result<(), Failure> {
        const WHAT: &str = "IB_WR_LOCAL_INV";

        if pair.is_open {
            pair.is_open = false;
            pair.target.prepare_invalidations();
            pair.target.post().map_err(|error| Failure::Post {
                of: WHAT,
                error,
                is_refused: false,
            })?;
            self.settle(pair, WHAT, 0)?;
        }

        Ok(())
    }

    /// Causes an error on purpose, and looks whether it is what it has to be and whether a new
    /// connection works; returns that.
    fn cause_error(
        &mut self,
        mut pair: Pair<'d, 'p>,
        route: &Route<'d, 'p>,
    ) -> Result<Pair<'d, 'p>, Failure> {
        const TITLE: &str = "READ with a wrong key";
        const TEST: &str = "wrong_key";
        let depth = self.settings.outstanding();
        let of = Of::Messages {
            size: Self::WORD,
            count: depth,
        };

        self.count.tests = self.count.tests.saturating_add(1);

        let flushed = match self.wrong_key(&mut pair) {
            Ok(flushed) => flushed,
            Err(Failure::Stopped) => return Err(Failure::Stopped),
            Err(failure) => {
                pr_err!("{}{TITLE}: failed, {failure}\n", self.prefix);
                self.fail(&TITLE, TEST, of, &failure)?;

                return self.reconnect(pair, route);
            }
        };

        let mut pair = self.reconnect(pair, route)?;

        match self.test(&mut pair, &Test::SEND, Self::WORD, depth) {
            Ok(_) => {
                pr_info!(
                    "{}{TITLE}: {}, {flushed} flushed, queue pair in {}; recovered by a new one\n",
                    self.prefix,
                    Status::REM_ACCESS_ERR,
                    State::ERR
                );
                self.results.lock().add(TEST, of, Outcome::Flushed(flushed));
                Ok(pair)
            }
            Err(Failure::Stopped) => Err(Failure::Stopped),
            Err(failure) => {
                pr_err!("{}{TITLE}: not recovered, {failure}\n", self.prefix);
                self.fail(&TITLE, TEST, of, &failure)?;
                self.reconnect(pair, route)
            }
        }
    }

    /// Reads with a key that opens nothing, and then once more; returns how many requests were
    /// flushed.
    fn wrong_key(&self, pair: &mut Pair<'d, 'p>) -> Result<u32, Failure> {
        let test = &Test::READ;
        let mut flushed = 0u32;

        self.open(pair, test)?;
        prepare(
            pair,
            test,
            self.settings.outstanding() as usize,
            Self::WORD as usize,
        );
        pair.requester.falsify_first_key();

        for is_first in [true, false] {
            let mut expected = if is_first {
                Status::REM_ACCESS_ERR
            } else {
                Status::WR_FLUSH_ERR
            };
            let mut message = 0u64;

            pair.requester.post().map_err(|error| Failure::Post {
                of: test.name,
                error,
                is_refused: false,
            })?;

            // What has not completed is found among the others.
            self.wait(pair, PATIENCE, |pair| {
                (pair.requester.outstanding() == 0).then_some(())
            })?;

            for completion in pair.requester.completions() {
                if completion.times != 1 || !completion.is_own || completion.status != expected {
                    return Err(bad(&completion, test.name, message, &pair.requester));
                }

                if expected == Status::WR_FLUSH_ERR {
                    flushed = flushed.saturating_add(1);
                }

                expected = Status::WR_FLUSH_ERR;
                message = message.wrapping_add(1);
            }

            // A device may say so later than it completes the request.
            let is_in_error =
                |pair: &Pair<'_, '_>| (pair.requester.state() == Ok(State::ERR)).then_some(());

            if self.wait(pair, PATIENCE, is_in_error)?.is_none() {
                return Err(Failure::State(pair.requester.state().ok()));
            }
        }

        Ok(flushed)
    }
}

/// Returns the failure of posting messages, of which `first` is the first: it is not refused if others
/// were taken before.
///
/// A function of its own, as what it needs would take registers where messages are sent.
#[cold]
#[inline(never)]
fn not_posted(test: &Test, first: u64, error: Error) -> Failure {
    Failure::Post {
        of: test.name,
        error,
        is_refused: first == 0 && is_unsupported(error),
    }
}

/// Returns a failure as it is kept.
fn text(failure: &Failure) -> Result<CString> {
    CString::try_from_fmt(fmt!("{failure}"))
}

/// Makes room for queue pairs, and what they share.
fn queue_pairs<'e>(device: Device<'e>, count: usize) -> Result<QueuePairs<'e, Wire>, Failure> {
    let room = Room::new(count)?;
    let pd = ProtectionDomain::alloc(device).map_err(verbs::of("ib_alloc_pd"))?;
    let cq = CompletionQueue::create(
        device,
        &CompletionQueueAttributes {
            entries: 1,
            vector: 0,
        },
    )
    .map_err(verbs::of("ib_create_cq"))?;

    Ok(QueuePairs::new(room, pd, cq))
}

/// Prepares a batch, and the receives for it.
fn prepare(pair: &mut Pair<'_, '_>, test: &Test, count: usize, size: usize) {
    pair.requester.prepare(
        test.request,
        count,
        size,
        &pair.target,
        test.needs_read_behind,
    );

    if test.is_received {
        // The data of a write does not come with the receive.
        pair.target
            .prepare_receives(count, if test.is_sent { size } else { 0 });
    } else {
        pair.target.prepare_receives(0, 0);
    }
}

/// Fills in what is sent, or what is read.
fn fill(
    pair: &mut Pair<'_, '_>,
    test: &Test,
    pattern: Pattern,
    first: u64,
    size: usize,
    stops: Stops<'_>,
) -> Result<(), Failure> {
    let count = pair.requester.messages();

    if test.is_returned {
        fill_messages(&pair.target, count, pattern, first, size, stops)?;
    } else {
        fill_messages(&pair.requester, count, pattern, first, size, stops)?;
    }

    if test.has_immediate {
        pair.requester.set_immediates(|index| {
            pattern.immediate(first.wrapping_add(index))
                ^ u32::from(cfg!(krdma_smoke_bug = "wrong-immediate"))
        });
    }

    if test.is_atomic {
        pair.requester
            .set_operands(|index| pattern.operation(test, first.wrapping_add(index)).1);
    }

    Ok(())
}

/// Checks the data of a batch that has completed.
fn check(
    pair: &Pair<'_, '_>,
    test: &Test,
    pattern: Pattern,
    first: u64,
    size: usize,
    stops: Stops<'_>,
) -> Result<(), Failure> {
    let count = pair.requester.messages();

    if test.is_atomic {
        check_messages(&pair.target, count, first, size, stops, |message, _| {
            pattern.operation(test, message).0
        })?;
    }

    let word = |message, index| pattern.word(message, index);

    if test.is_returned {
        check_messages(&pair.requester, count, first, size, stops, word)
    } else {
        check_messages(&pair.target, count, first, size, stops, word)
    }
}

/// Looks whether to stop, once in [`BYTES`]; `bytes` is how many there were since the last look.
fn check_after(stops: Stops<'_>, bytes: &mut usize, size: usize) -> Result<(), Failure> {
    *bytes = bytes.wrapping_add(size);

    if *bytes >= BYTES {
        stops.check()?;
        *bytes = 0;
    }

    Ok(())
}

/// Fills in the data of `count` messages at one end.
///
/// Inlined for either end, as the call would take longer than one small message.
#[inline(always)]
fn fill_messages(
    end: &Endpoint<'_, Wire>,
    count: usize,
    pattern: Pattern,
    first: u64,
    size: usize,
    stops: Stops<'_>,
) -> Result<(), Failure> {
    let mut message = first;
    let mut bytes = 0usize;

    for contents in end.contents(count, size) {
        check_after(stops, &mut bytes, size)?;
        contents.fill(|index| pattern.word(message, index));
        message = message.wrapping_add(1);
    }

    Ok(())
}

/// Checks the data of `count` messages at one end; `word` is of a message and an index.
///
/// Inlined as [`fill_messages()`].
#[inline(always)]
fn check_messages(
    end: &Endpoint<'_, Wire>,
    count: usize,
    first: u64,
    size: usize,
    stops: Stops<'_>,
    word: impl Fn(u64, u64) -> u64,
) -> Result<(), Failure> {
    let mut message = first;
    let mut bytes = 0usize;

    for contents in end.contents(count, size) {
        check_after(stops, &mut bytes, size)?;
        contents
            .check(|index| word(message, index))
            .map_err(|offset| Failure::Data { message, offset })?;
        message = message.wrapping_add(1);
    }

    Ok(())
}

/// Finds out why a batch has not completed as it should.
fn diagnose(pair: &Pair<'_, '_>, what: &'static str, first: u64) -> Failure {
    let find = |is_bad| find(pair, what, first, is_bad);

    cause(pair, what, first)
        .or_else(|| find(|wc| wc.times > 0 && wc.status != Status::SUCCESS))
        .or_else(|| find(|wc| wc.times == 0))
        // What was lost has come meanwhile.
        .unwrap_or(Failure::Lost {
            of: what,
            message: first,
        })
}

/// Returns what has gone wrong by itself: what was flushed was so for another one's failure.
fn cause(pair: &Pair<'_, '_>, what: &'static str, first: u64) -> Option<Failure> {
    let find = |is_bad| find(pair, what, first, is_bad);

    find(|wc| wc.times > 0 && wc.status != Status::SUCCESS && wc.status != Status::WR_FLUSH_ERR)
        .or_else(|| find(|wc| wc.times > 1 || (wc.times == 1 && !wc.is_own)))
}

/// Returns what is wrong with the first completion of a batch that is bad.
fn find(
    pair: &Pair<'_, '_>,
    what: &'static str,
    first: u64,
    is_bad: fn(&WorkCompletion) -> bool,
) -> Option<Failure> {
    let (requester, target) = (&*pair.requester, &*pair.target);

    if let Some((index, completion)) = position(requester.completions(), is_bad) {
        let message = first.wrapping_add(index);

        return Some(if index < requester.messages() as u64 {
            bad(&completion, what, message, requester)
        } else {
            // It is that of the last message.
            let message = message.saturating_sub(1);

            bad(&completion, "the read behind it", message, requester)
        });
    }

    if let Some((index, completion)) = position(target.completions(), is_bad) {
        return Some(bad(&completion, what, first.wrapping_add(index), target));
    }

    let (index, completion) = position(target.receive_completions(), is_bad)?;
    let message = first.wrapping_add(index);

    Some(bad(&completion, "receive", message, target))
}

/// Returns what is wrong with a completion at one end.
fn bad(
    completion: &WorkCompletion,
    of: &'static str,
    message: u64,
    end: &Endpoint<'_, Wire>,
) -> Failure {
    if completion.times == 0 {
        return Failure::Lost { of, message };
    }

    if completion.times > 1 {
        return Failure::Repeated { of, message };
    }

    if !completion.is_own {
        return Failure::Stray { of, message };
    }

    Failure::Completion {
        of,
        message,
        status: completion.status,
        vendor_err: completion.vendor_err,
        state: end.state().ok(),
    }
}

/// Returns the first completion that is bad, and its index.
fn position(
    completions: impl Iterator<Item = WorkCompletion>,
    is_bad: fn(&WorkCompletion) -> bool,
) -> Option<(u64, WorkCompletion)> {
    let mut index = 0u64;

    for completion in completions {
        if is_bad(&completion) {
            return Some((index, completion));
        }

        index = index.wrapping_add(1);
    }

    None
}

/// Returns how an end is called in the log and in the results.
fn end(name: &CStr, device: Device<'_>, (port, address): &(Port<'_>, Address)) -> Result<End> {
    Ok(End {
        device: CString::try_from_fmt(fmt!("{name}"))?,
        firmware: CString::try_from_fmt(fmt!("{}", device.firmware()))?,
        port: port.number(),
        mtu: port.mtu(),
        address: *address,
    })
}

/// What a test is called in the log.
struct Title<'a> {
    test: &'a Test,
    size: u32,
    depth: u32,
}

impl fmt::Display for Title<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { test, size, depth } = self;

        f.write_fmt(fmt!("{} {size}B depth {depth}", test.name))
    }
}

/// What was measured in a test.
struct Figures<'a> {
    measured: &'a Measured,
    messages: u32,
    size: u32,
}

impl fmt::Display for Figures<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured {
            elapsed, latencies, ..
        } = self.measured;
        let messages = u64::from(self.messages);

        // Thousandths of 1000 operations per second, and of 1,000,000 bytes per second.
        let rate = |count: u64, scale: u64| match count.checked_mul(scale) {
            Some(scaled) => scaled.checked_div(*elapsed).unwrap_or(0),
            None => count.checked_div(*elapsed / scale).unwrap_or(0),
        };
        let bytes = messages.saturating_mul(self.size.into());

        f.write_fmt(fmt!(
            "latency min/p50/p99/p99.9/max {}/{}/{}/{}/{} us, {} kops/s, {} MB/s",
            Tenths(latencies.min / 100),
            Tenths(latencies.percentile(500) / 100),
            Tenths(latencies.percentile(990) / 100),
            Tenths(latencies.percentile(999) / 100),
            Tenths(latencies.max / 100),
            Thousandths(rate(messages, 1_000_000_000)),
            Thousandths(rate(bytes, 1_000_000)),
        ))
    }
}

/// A number of thousandths, of which three digits are shown.
struct Thousandths(u64);

impl fmt::Display for Thousandths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1000 => f.write_fmt(fmt!("0.{:03}", self.0)),
            1000..10_000 => f.write_fmt(fmt!("{}.{:02}", self.0 / 1000, self.0 / 10 % 100)),
            10_000..100_000 => fmt::Display::fmt(&Tenths(self.0 / 100), f),
            _ => fmt::Display::fmt(&(self.0 / 1000), f),
        }
    }
}

/// A number of tenths.
struct Tenths(u64);

impl fmt::Display for Tenths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_fmt(fmt!("{}.{}", self.0 / 10, self.0 % 10))
    }
}
