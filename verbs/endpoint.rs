// SPDX-License-Identifier: GPL-2.0

//! The ends of a connection, which post work requests and take their completions.

use super::{
    buffer::{
        Contents,
        Length, //
    },
    cq::{
        CompletionQueueAttributes,
        PollContext,
        PolledCompletionQueue, //
    },
    mr::MemoryRegion,
    now,
    of,
    qp::{
        ConnectionAttributes,
        QueuePair, //
    },
    relax,
    wc::{
        Entry,
        Outstanding, //
    },
    wr::{
        ReceiveRequest,
        Remote,
        SendRequest, //
    },
    Address,
    Buffer,
    CallError,
    Capabilities,
    Consumer,
    Device,
    Port,
    ProtectionDomain,
    QueuePairAttributes,
    Request,
    State,
    WorkCompletion, //
};
use crate::bindings;
use core::{
    mem::ManuallyDrop,
    ptr::null_mut, //
};
use kernel::{
    alloc::KVVec,
    page::PAGE_SIZE,
    prelude::*, //
};

/// What an endpoint is to be like.
pub(crate) struct EndpointAttributes {
    /// How many messages can be on their way, either way; not 0.
    pub(crate) depth: u32,
    /// The size of the largest message in bytes.
    pub(crate) size: usize,
    /// Who takes its completions.
    pub(crate) context: PollContext,
    /// The peer is to access its memory.
    pub(crate) is_target: bool,
}

impl EndpointAttributes {
    /// One of each queue's work requests is for draining, and one to be sent is for the read behind
    /// messages ([`Endpoint::prepare()`]).
    const EXTRA_SENDS: u32 = 2;
    const EXTRA_RECEIVES: u32 = 1;

    /// Tells whether two such endpoints leave others at least as much memory as their messages take.
    pub(crate) fn pair_is_affordable(&self) -> bool {
        Buffer::are_affordable((self.depth as usize).saturating_mul(2), self.size)
    }

    /// Returns the largest depth that such a device can have.
    pub(crate) fn max_depth(device: &Capabilities) -> u32 {
        let entries = device
            .completion_queue_entries
            .saturating_sub(Self::EXTRA_SENDS)
            .saturating_sub(Self::EXTRA_RECEIVES);

        device
            .queue_pair_work_requests
            .saturating_sub(Self::EXTRA_SENDS)
            .min(entries / 2)
    }
}

/// One end of a reliable connection: a queue pair with a completion queue of its own, and memory for
/// its messages.
///
/// What is posted refers to this only, so that there is nothing that a caller could free too early.
/// Dropping it drains the queue pair, and destroys everything.
pub(crate) struct Endpoint<'d, C: Consumer> {
    qp: ManuallyDrop<QueuePair<'d, C>>,
    /// Of the messages' buffers, if the peer is to access them: each of as many as are given, the
    /// last perhaps of fewer.
    regions: KVVec<MemoryRegion<'d, C>>,
    buffers_per_region: usize,
    used: ManuallyDrop<Used<'d>>,
    sends: KVVec<SendRequest>,
    receives: KVVec<ReceiveRequest>,
    /// What the batch that is prepared asks for, of how many messages it is, and of how many work
    /// requests with the read behind them.
    request: Option<Request>,
    messages: usize,
    prepared: usize,
    prepared_receives: usize,
    /// What is prepared has been posted, so that there are completions of it.
    is_posted: bool,
    are_receives_posted: bool,
    lkey: u32,
    device: Device<'d>,
}

/// What the device, and the completions of what was posted, may use for as long as there is the queue
/// pair.
struct Used<'d> {
    /// One for each message, all of the same size, and one for the read behind them.
    buffers: KVVec<Buffer<'d>>,
    behind: Buffer<'d>,
    send_entries: KVVec<Entry>,
    receive_entries: KVVec<Entry>,
    outstanding: Pin<KBox<Outstanding>>,
}

impl<'d, C: Consumer> Endpoint<'d, C> {
    /// Creates an endpoint, in a box, not connected: all that it will ever need. May sleep, and with
    /// a large depth may take long, in which it asks again and again whether it `goes_on`.
    ///
    /// # Errors
    ///
    /// Those of the functions of `ib_core` that are called, or `EINTR` of none of them. What has
    /// been done is undone.
    pub(crate) fn create(
        device: Device<'d>,
        attributes: &EndpointAttributes,
        goes_on: impl Fn() -> bool,
    ) -> Result<KBox<Self>, CallError> {
        let depth = attributes.depth;
        let send_work_requests = depth.saturating_add(EndpointAttributes::EXTRA_SENDS);
        let receive_work_requests = depth.saturating_add(EndpointAttributes::EXTRA_RECEIVES);
        let batch = depth as usize;
        let one_more = batch
            .checked_add(1)
            .ok_or(ENOMEM)
            .map_err(CallError::of_memory)?;
        let check = || {
            goes_on()
                .then_some(())
                .ok_or(EINTR)
                .map_err(of("creating an endpoint"))
        };

        let pd = ProtectionDomain::alloc(device).map_err(of("ib_alloc_pd"))?;
        let lkey = pd.local_key();

        let cq = PolledCompletionQueue::allocate(
            device,
            &CompletionQueueAttributes {
                entries: send_work_requests.saturating_add(receive_work_requests),
                vector: 0,
            },
            attributes.context,
        )
        .map_err(of("ib_alloc_cq"))?;

        let qp = QueuePair::create(
            pd,
            cq,
            &QueuePairAttributes {
                send_work_requests,
                receive_work_requests,
                send_sges: 1,
                receive_sges: 1,
            },
        )
        .map_err(of("ib_create_qp"))?;

        let outstanding = KBox::pin_init(Outstanding::new(attributes.context), GFP_KERNEL)
            .map_err(CallError::of_memory)?;
        let raw = qp.as_raw();
        let used = Used {
            send_entries: array(one_more, |_| Ok(Entry::new(&outstanding, raw)))?,
            receive_entries: array(batch, |_| Ok(Entry::new(&outstanding, raw)))?,
            buffers: array(batch, |_| {
                check()?;
                Buffer::allocate(device, attributes.size).map_err(CallError::of_memory)
            })?,
            behind: Buffer::allocate(device, size_of::<u64>()).map_err(CallError::of_memory)?,
            outstanding,
        };
        let this = Self {
            sends: array(one_more, |_| Ok(SendRequest::new()))?,
            receives: array(batch, |_| Ok(ReceiveRequest::new()))?,
            regions: KVVec::new(),
            buffers_per_region: 0,
            request: None,
            messages: 0,
            prepared: 0,
            prepared_receives: 0,
            is_posted: false,
            are_receives_posted: false,
            used: ManuallyDrop::new(used),
            lkey,
            qp: ManuallyDrop::new(qp),
            device,
        };
        // So that callers do not move it: it is large for the stack.
        let mut this = KBox::new(this, GFP_KERNEL).map_err(CallError::of_memory)?;

        if attributes.is_target {
            // As few as can be: each takes the device some time, also when it is destroyed.
            let most = device
                .capabilities()
                .registered_pages
                .min(Self::REGION_PAGES) as usize;
            let size = this.used.buffers.first().map_or(PAGE_SIZE, Buffer::size);
            let each = most.checked_div(size / PAGE_SIZE).unwrap_or(1).max(1);
            let Self {
                qp, used, regions, ..
            } = &mut *this;

            let count = batch.saturating_add(each.wrapping_sub(1)) / each;

            *regions = KVVec::with_capacity(count, GFP_KERNEL).map_err(CallError::of_memory)?;

            for piece in used.buffers.chunks(each) {
                let pages = (size / PAGE_SIZE).saturating_mul(piece.len());

                check()?;

                // SAFETY: `Drop` gives up the protection domain only if the region is gone.
                let region = unsafe { MemoryRegion::alloc(qp.pd(), pages) };

                push(regions, region.map_err(of("ib_alloc_mr"))?)?;

                if let Some(region) = regions.last_mut() {
                    // SAFETY: As above, and so with the buffers.
                    unsafe { region.map(piece) }?;
                }
            }

            this.buffers_per_region = each;
        }

        Ok(this)
    }

    /// Connects the endpoint to its peer, whose address is to be of the same kind.
    ///
    /// # Errors
    ///
    /// That of `ib_modify_qp()`; the endpoint is good for nothing then.
    pub(crate) fn connect(
        &mut self,
        here: &(Port<'d>, Address),
        there: &(Port<'_>, Address),
        peer: &Endpoint<'_, C>,
    ) -> Result<(), CallError> {
        let own = self.device.capabilities();
        let peers = peer.device.capabilities();
        let access = self.access();

        self.qp
            .connect(
                here,
                there,
                peer.qp.number(),
                &ConnectionAttributes {
                    outstanding_reads: reads(own.outstanding_reads, peers.incoming_reads),
                    incoming_reads: reads(own.incoming_reads, peers.outstanding_reads),
                    access,
                },
            )
            .map_err(of("ib_modify_qp"))
    }

    /// Prepares the batch of work requests that [`Self::post()`] posts: `count` messages of `length`
    /// bytes.
    ///
    /// Each is about the buffer of its own index, on either side. They are linked, and posted by one
    /// call. With `read_behind` there is one more: a read of the last message's target, which is
    /// executed after the others, and whose completion tells that what they have written is there.
    ///
    /// Of more messages than the depth, and of more bytes than the size, only as many are prepared.
    pub(crate) fn prepare(
        &mut self,
        request: Request,
        count: usize,
        length: usize,
        peer: &Endpoint<'_, C>,
        read_behind: bool,
    ) {
        let count = count.min(self.receives.len());
        let mut index = 0;

        self.request = Some(request);

        while index < count {
            if let Some(buffer) = self.used.buffers.get(index) {
                let piece = piece(buffer, length, self.lkey);

                self.prepare_one(index, request, piece, peer.remote(index));
            }

            index = index.wrapping_add(1);
        }

        if read_behind {
            let last = peer.remote(count.saturating_sub(1));
            let length = length.min(size_of::<u64>());
            let piece = piece(&self.used.behind, length, self.lkey);

            self.prepare_one(count, Request::Read, piece, last);
        }

        self.link(count, count.wrapping_add(read_behind.into()));
    }

    /// Prepares a batch of work requests that open the buffers to the peer, under new keys, for
    /// requests of one kind, and for the read behind them if there is to be one. None for an endpoint
    /// that is no target.
    pub(crate) fn prepare_registrations(&mut self, request: Request, read_behind: bool) {
        let mut access = bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE | request.access();

        if read_behind {
            access |= Request::Read.access();
        }

        self.prepare_regions(|send, cqe, region| send.set_registration(cqe, region, access));
    }

    /// Prepares a batch of work requests that close the buffers to the peer.
    pub(crate) fn prepare_invalidations(&mut self) {
        self.prepare_regions(|send, cqe, region| send.set_invalidation(cqe, region));
    }

    fn prepare_regions(
        &mut self,
        mut set: impl FnMut(&mut SendRequest, *mut bindings::ib_cqe, &mut MemoryRegion<'d, C>),
    ) {
        let mut entries = self.used.send_entries.iter();
        let mut sends = self.sends.iter_mut();

        self.request = None;

        for region in &mut *self.regions {
            if let (Some(entry), Some(send)) = (entries.next(), sends.next()) {
                set(send, entry.as_raw(), region);
            }
        }

        let count = self.regions.len();

        self.link(count, count);
    }

    /// Returns where a buffer of this endpoint is for its peer; nowhere, if it is not a target.
    fn remote(&self, index: usize) -> Remote {
        let (Some(number), Some(place), Some(buffer)) = (
            index.checked_div(self.buffers_per_region),
            index.checked_rem(self.buffers_per_region),
            self.used.buffers.first(),
        ) else {
            return Remote::default();
        };

        // They are all of the same size.
        self.regions
            .get(number)
            .map_or_else(Remote::default, |region| {
                Remote::of(region, place.saturating_mul(buffer.size()))
            })
    }

    /// Prepares one work request.
    fn prepare_one(
        &mut self,
        index: usize,
        request: Request,
        piece: bindings::ib_sge,
        remote: Remote,
    ) {
        let (Some(send), Some(entry)) =
            (self.sends.get_mut(index), self.used.send_entries.get(index))
        else {
            return;
        };

        #[cfg(krdma_smoke_bug = "wrong-wr_cqe")]
        let entry = match (self.request, self.used.send_entries.first()) {
            (Some(Request::Read), Some(first)) => first,
            _ => entry,
        };

        send.set(request, entry.as_raw(), piece, remote);
    }

    /// Links the first `prepared` requests: the next batch, of so many messages, and perhaps the read
    /// behind them.
    fn link(&mut self, messages: usize, prepared: usize) {
        self.messages = messages;
        self.prepared = prepared;
        self.is_posted = false;

        let sends = self.sends.get_mut(..prepared).unwrap_or_default();
        let mut next = null_mut();

        for send in sends.iter_mut().rev() {
            send.link(next);
            next = send.as_raw();
        }
    }

    /// What the peer may ask of the queue pair, as far as memory is open to it:
    /// `enum ib_access_flags`.
    fn access(&self) -> bindings::ib_access_flags {
        let atomic = if self.device.capabilities().atomics {
            bindings::ib_access_flags_IB_ACCESS_REMOTE_ATOMIC
        } else {
            0
        };

        bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE
            | bindings::ib_access_flags_IB_ACCESS_REMOTE_READ
            | bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE
            | atomic
    }

    /// Sets the immediate data of the messages that are prepared, each by its index.
    pub(crate) fn set_immediates(&mut self, mut immediate: impl FnMut(u64) -> u32) {
        if self.request.is_some_and(Request::has_immediate) {
            let mut index = 0u64;

            for send in self.prepared_sends() {
                send.set_immediate(immediate(index));
                index = index.wrapping_add(1);
            }
        }
    }

    /// Sets the operands of the atomic operations that are prepared, each by its index: what is
    /// compared and swapped, or what is added and nothing.
    pub(crate) fn set_operands(&mut self, mut operands: impl FnMut(u64) -> (u64, u64)) {
        if self.request.is_some_and(Request::is_atomic) {
            let mut index = 0u64;

            for send in self.prepared_sends() {
                send.set_operands(operands(index));
                index = index.wrapping_add(1);
            }
        }
    }

    /// Changes the key of the first read that is prepared to one that opens nothing.
    pub(crate) fn falsify_first_key(&mut self) {
        if self.request == Some(Request::Read) {
            if let Some(send) = self.sends.first_mut() {
                send.falsify_key();
            }
        }
    }

    /// Returns the messages of the batch that is prepared, without the read behind them.
    fn prepared_sends(&mut self) -> impl Iterator<Item = &mut SendRequest> {
        let count = self.messages;

        self.sends.get_mut(..count).unwrap_or_default().iter_mut()
    }

    /// Posts the batch that was prepared.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the one before it is not over, or what `ib_post_send()` returns; the endpoint is
    /// good for nothing then.
    pub(crate) fn post(&mut self) -> Result {
        let entries = self
            .used
            .send_entries
            .get(..self.prepared)
            .unwrap_or_default();

        let (Some(first), false) = (self.sends.first_mut(), entries.is_empty()) else {
            return Ok(());
        };

        self.used.outstanding.begin(entries)?;
        self.is_posted = true;

        // SAFETY: The requests were prepared, and are linked to one another; their entries stay
        // until the queue pair is destroyed, and so do the buffers. There are no more of them than
        // the extra ones leave room for, and as many were not outstanding.
        unsafe { self.qp.post_send(first.as_raw()) }
    }

    /// Prepares the batch of receives that [`Self::post_receives()`] posts: `count` messages of up to
    /// `length` bytes. Of more than the depth, or the size, only as many are prepared.
    pub(crate) fn prepare_receives(&mut self, count: usize, length: usize) {
        let count = count.min(self.receives.len());
        let mut buffers = self.used.buffers.iter();
        let mut entries = self.used.receive_entries.iter();

        self.prepared_receives = count;
        self.are_receives_posted = false;

        let receives = self.receives.get_mut(..count).unwrap_or_default();

        for receive in receives.iter_mut() {
            let (Some(buffer), Some(entry)) = (buffers.next(), entries.next()) else {
                break;
            };

            receive.set(entry.as_raw(), piece(buffer, length, self.lkey));
        }

        let mut next = null_mut();

        for receive in receives.iter_mut().rev() {
            receive.link(next);
            next = receive.as_raw();
        }
    }

    /// Posts the receives that were prepared.
    ///
    /// # Errors
    ///
    /// As [`Self::post()`], of `ib_post_recv()`.
    pub(crate) fn post_receives(&mut self) -> Result {
        let entries = self
            .used
            .receive_entries
            .get(..self.prepared_receives)
            .unwrap_or_default();

        let (Some(first), false) = (self.receives.first_mut(), entries.is_empty()) else {
            return Ok(());
        };

        self.used.outstanding.begin(entries)?;
        self.are_receives_posted = true;

        // SAFETY: As in `post()`.
        unsafe { self.qp.post_receive(first.as_raw()) }
    }

    /// Takes completions, if there are any; or sleeps until everything is over, for a tenth of a
    /// second at most.
    pub(crate) fn poll(&self) {
        match self.qp.cq().context() {
            PollContext::Direct => self.qp.cq().process(),
            PollContext::Workqueue if self.left() > 0 => self.used.outstanding.wait(),
            PollContext::Workqueue => {}
        }
    }

    /// Returns how many work requests have been posted that have not completed; a negative number if
    /// one has failed, or has completed more than once.
    pub(crate) fn left(&self) -> i32 {
        self.used.outstanding.left()
    }

    /// Returns how many work requests have been posted that have not completed, failed or not.
    pub(crate) fn outstanding(&self) -> i32 {
        self.used.outstanding.count()
    }

    /// Makes sure that nothing is outstanding. May sleep.
    fn drain(&mut self) {
        let is_flushed = self.qp.flush().is_ok();

        // `ib_drain_qp()` waits a tenth of a second for each queue, for somebody else to take the
        // completions, before it does so itself. It is left what does not come.
        if is_flushed && self.qp.cq().context() == PollContext::Direct {
            let mut count = self.outstanding();
            let mut since = now();

            while count > 0 && now().saturating_sub(since) < Self::PATIENCE {
                self.qp.cq().process();

                let left = self.outstanding();

                if left == count {
                    relax();
                } else {
                    count = left;
                    since = now();
                }
            }
        }

        if self.outstanding() == 0 {
            // SAFETY: All that is posted has an entry, and is counted until that has completed.
            unsafe { self.qp.set_drained() };
        }

        self.qp.drain();
    }

    /// How many pages a memory region has at most, if they are not of one buffer: some devices are
    /// slow with many.
    const REGION_PAGES: u32 = 512;

    /// How long to wait for the next completion before it is left to `ib_drain_qp()`, in nanoseconds.
    const PATIENCE: u64 = 100_000_000;

    /// Returns how many messages the batch is of, without the read behind them.
    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    /// Returns how the messages of the last batch have completed, if everything has that was posted,
    /// and well; else nothing.
    pub(crate) fn good_completions(&self) -> impl Iterator<Item = &WorkCompletion> {
        self.used
            .outstanding
            .good_completions(self.posted(self.messages))
    }

    /// As [`Self::good_completions()`], of the receives.
    pub(crate) fn good_receives(&self) -> impl Iterator<Item = &WorkCompletion> {
        self.used
            .outstanding
            .good_completions(self.posted_receives())
    }

    /// Returns how the work requests of the last batch have completed so far, the read behind it
    /// included.
    pub(crate) fn completions(&self) -> impl Iterator<Item = WorkCompletion> + '_ {
        self.used
            .outstanding
            .completions(self.posted(self.prepared))
    }

    /// As [`Self::completions()`], of the receives.
    pub(crate) fn receive_completions(&self) -> impl Iterator<Item = WorkCompletion> + '_ {
        self.used.outstanding.completions(self.posted_receives())
    }

    /// Returns the first `count` entries of the batch, if that has been posted.
    fn posted(&self, count: usize) -> &[Entry] {
        let count = if self.is_posted { count } else { 0 };

        self.used.send_entries.get(..count).unwrap_or_default()
    }

    /// As [`Self::posted()`], all of the receives.
    fn posted_receives(&self) -> &[Entry] {
        let count = if self.are_receives_posted {
            self.prepared_receives
        } else {
            0
        };

        self.used.receive_entries.get(..count).unwrap_or_default()
    }

    /// Returns the first `bytes` of the memory of each of the first `count` messages of a batch, or
    /// as much as there is.
    pub(crate) fn contents(
        &self,
        count: usize,
        bytes: usize,
    ) -> impl Iterator<Item = Contents<'_>> + use<'_, 'd, C> {
        let buffers = self.used.buffers.get(..count).unwrap_or_default();
        let length = Length::new(bytes, buffers.first().map_or(0, Buffer::size));

        buffers.iter().map(move |buffer| {
            // SAFETY: `create()` made all of them of the same size.
            unsafe { buffer.contents(length) }
        })
    }

    /// Returns the state of the queue pair. May sleep.
    ///
    /// # Errors
    ///
    /// That of `ib_query_qp()`.
    pub(crate) fn state(&self) -> Result<State> {
        self.qp.state()
    }
}

impl<C: Consumer> Drop for Endpoint<'_, C> {
    fn drop(&mut self) {
        let mut are_gone = true;

        self.drain();

        // Before their protection domain, which goes with the queue pair.
        while let Some(region) = self.regions.pop() {
            are_gone &= region.deregister();
        }

        // SAFETY: It is not used after this, and this is the only place that takes it.
        let pd = unsafe { ManuallyDrop::take(&mut self.qp) }.destroy();

        match pd {
            // No completion comes any more: the completion queue has been freed, which waits for
            // those that are being taken (`ib_free_cq()`).
            Some(pd) if are_gone => {
                drop(pd);
                // SAFETY: As above.
                unsafe { ManuallyDrop::drop(&mut self.used) };
            }
            // What stays refers to them: they are leaked with it.
            pd => core::mem::forget(pd),
        }
    }
}

/// Returns how many reads and atomic operations one side may have on their way if the other works at
/// as many.
fn reads(requester: u32, responder: u32) -> u8 {
    u8::try_from(requester.min(responder)).unwrap_or(u8::MAX)
}

/// Returns the first `length` bytes of a buffer, as far as it goes, for a work request.
fn piece(buffer: &Buffer<'_>, length: usize, lkey: u32) -> bindings::ib_sge {
    bindings::ib_sge {
        addr: buffer.address(),
        length: length.min(buffer.size()) as u32,
        lkey,
    }
}

/// Makes a list of `count` items, which never moves, each of its index.
fn array<T>(
    count: usize,
    mut make: impl FnMut(usize) -> Result<T, CallError>,
) -> Result<KVVec<T>, CallError> {
    let mut array = KVVec::with_capacity(count, GFP_KERNEL).map_err(CallError::of_memory)?;

    while array.len() < count {
        let item = make(array.len())?;

        push(&mut array, item)?;
    }

    Ok(array)
}

/// Adds an item to a list that has room for it.
fn push<T>(list: &mut KVVec<T>, item: T) -> Result<(), CallError> {
    list.push_within_capacity(item)
        .map_err(CallError::of_memory)
}
