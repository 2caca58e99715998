// SPDX-License-Identifier: GPL-2.0

//! RDMA devices.

use crate::bindings;
use core::{
    marker::PhantomData,
    mem::offset_of,
    ptr::{
        with_exposed_provenance,
        NonNull, //
    },
};
use kernel::{
    fmt,
    prelude::*,
    str::BStr, //
};

/// A device that `ib_core` has lent to a client.
///
/// `'d` is the time from the client's `add` for this device until its `remove` returns, or during
/// which a [`DeviceReference`] is used. It is invariant, and each call of `add` has one of its own,
/// so that objects of two devices cannot be mistaken for one another: such code does not compile.
///
/// The device's name is not part of this type since it can change at any moment outside the
/// callbacks of [`Client`](super::client::Client); those are given the name.
///
/// # Invariants
///
/// `ptr` points to a `struct ib_device` that stays valid for `'d`, and that is laid out as in the
/// bindings: see [`Compatible`](super::ib_core::Compatible) and [`looks_right()`].
#[derive(Clone, Copy)]
pub(crate) struct Device<'d> {
    ptr: NonNull<bindings::ib_device>,
    _brand: PhantomData<fn(&'d ()) -> &'d ()>,
}

// SAFETY: `ib_core` allows every verb that is reachable from a `Device` to be called from any
// thread (Documentation/infiniband/core_locking.rst, "Reentrancy").
unsafe impl Send for Device<'_> {}

// SAFETY: As above; the verbs may also be called for the same device by several threads at once.
unsafe impl Sync for Device<'_> {}

impl Device<'_> {
    /// Makes a `Device` of the pointer that a callback of `struct ib_client` was given.
    ///
    /// # Safety
    ///
    /// `ptr` must stay valid for the lifetime that the caller chooses, which must end before the
    /// client's `remove` for this device returns or a reference to it is given up, and must not be
    /// equal to that of any other device. The device must have looked right in `add`.
    pub(super) unsafe fn from_raw(ptr: NonNull<bindings::ib_device>) -> Self {
        // INVARIANT: By the safety requirements.
        Self {
            ptr,
            _brand: PhantomData,
        }
    }

    /// Returns the `struct ib_device`.
    pub(super) fn as_raw(self) -> *mut bindings::ib_device {
        self.ptr.as_ptr()
    }

    /// Tells whether the other one is the same device.
    pub(crate) fn is(self, other: Device<'_>) -> bool {
        self.ptr == other.ptr
    }

    /// Returns how many completion vectors the device has.
    pub(super) fn completion_vectors(self) -> u32 {
        // SAFETY: By the type invariant the device is valid. Drivers set the number before they
        // register the device.
        let vectors = unsafe { (*self.as_raw()).num_comp_vectors };

        u32::try_from(vectors).unwrap_or(0)
    }

    /// Keeps the device registered for longer than `'d`.
    pub(crate) fn hold(self) -> DeviceReference {
        // SAFETY: By the type invariant the device is valid, and `ib_core` or a reference like this
        // one holds a reference of its own for `'d`, so that the count is not zero:
        // `disable_device()` gives up `ib_core`'s after `remove` has returned.
        unsafe { kernel::bindings::refcount_inc((&raw mut (*self.as_raw()).refcount).cast()) };

        // INVARIANT: It has just been taken.
        DeviceReference { ptr: self.ptr }
    }

    /// Returns what the device can do.
    pub(crate) fn capabilities(self) -> Capabilities {
        // SAFETY: By the type invariant the device is valid. Its driver sets the attributes before
        // it registers the device, and they do not change.
        let attributes = unsafe { &(*self.as_raw()).attrs };

        Capabilities {
            queue_pair_work_requests: count(attributes.max_qp_wr),
            completion_queue_entries: count(attributes.max_cqe),
            registered_pages: attributes.max_fast_reg_page_list_len,
            outstanding_reads: count(attributes.max_qp_init_rd_atom),
            incoming_reads: count(attributes.max_qp_rd_atom),
            atomics: attributes.atomic_cap != bindings::ib_atomic_cap_IB_ATOMIC_NONE,
            fast_registration: attributes.device_cap_flags
                & bindings::ib_device_cap_flags_IB_DEVICE_MEM_MGT_EXTENSIONS as u64
                != 0,
        }
    }

    /// Tells whether the device speaks iWARP, where queue pairs are connected by TCP.
    pub(crate) fn is_iwarp(self) -> bool {
        // SAFETY: By the type invariant the device is valid. Its driver sets the type of node
        // before it registers the device.
        unsafe { (*self.as_raw()).node_type == bindings::RDMA_NODE_RNIC as u8 }
    }

    /// Returns the version of the device's firmware as its driver words it; empty if the driver does
    /// not tell.
    pub(crate) fn firmware(self) -> FirmwareVersion {
        let mut version = [0; FirmwareVersion::SIZE];

        // SAFETY: By the type invariant the device is valid. Drivers write no more than this, with
        // a NUL.
        unsafe { bindings::ib_get_device_fw_str(self.as_raw(), version.as_mut_ptr().cast()) };

        FirmwareVersion(version)
    }

    /// Returns how many ports the device has; they are numbered from 1.
    pub(super) fn ports(self) -> u32 {
        // SAFETY: By the type invariant the device is valid. Its driver sets the number before it
        // registers the device.
        unsafe { (*self.as_raw()).phys_port_cnt }
    }

    /// Returns the device that accesses memory for this one, or null if that is done by software,
    /// which wants virtual addresses (`ib_uses_virt_dma()`).
    pub(super) fn dma_device(self) -> *mut bindings::device {
        // SAFETY: By the type invariant the device is valid. `ib_register_device()` sets the member.
        unsafe { (*self.as_raw()).dma_device }
    }

    /// Returns the name of the device.
    ///
    /// # Safety
    ///
    /// The device must not be renamed for as long as the name is used: `devices_rwsem` is held, as
    /// in the callbacks `add` and `rename` of `struct ib_client`.
    pub(super) unsafe fn name<'a>(self) -> &'a BStr {
        // SAFETY: By the type invariant the device is valid. Whoever writes its name does so by
        // `strscpy()`, which leaves a NUL in it, and with `devices_rwsem` held for writing, which
        // by the safety requirement nobody can hold now.
        unsafe { bindings::c_string((&raw const (*self.as_raw()).name).cast()) }
    }
}

/// What a device can do: of `struct ib_device_attr`.
pub(crate) struct Capabilities {
    /// How many work requests each of the two queues of a queue pair can have outstanding.
    pub(crate) queue_pair_work_requests: u32,
    /// How many entries a completion queue can have.
    pub(crate) completion_queue_entries: u32,
    /// How many pages a memory region can have that is registered by a work request.
    pub(crate) registered_pages: u32,
    /// How many reads and atomic operations of a queue pair can be on their way.
    pub(crate) outstanding_reads: u32,
    /// How many reads and atomic operations of its peer a queue pair can work at.
    pub(crate) incoming_reads: u32,
    /// Atomic operations are there, if perhaps for user space only.
    pub(crate) atomics: bool,
    /// Memory can be registered, and closed again, by work requests.
    pub(crate) fast_registration: bool,
}

/// Returns a number of C's, which was an `int` before Linux 7.3.
fn count(number: impl TryInto<u32>) -> u32 {
    number.try_into().unwrap_or(0)
}

/// A version as the driver words it, NUL-terminated.
pub(crate) struct FirmwareVersion([u8; Self::SIZE]);

impl FirmwareVersion {
    const SIZE: usize = bindings::IB_FW_VERSION_NAME_MAX as usize;
}

impl fmt::Display for FirmwareVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.0.split(|byte| *byte == 0).next().unwrap_or_default();

        fmt::Display::fmt(BStr::from_bytes(version), f)
    }
}

/// A reference to a device that keeps it registered: its unregistering waits for the end of all of
/// them (`ib_device_try_get()`).
///
/// Whoever has one must give it up soon after the client's context of the device is dropped.
///
/// # Invariants
///
/// There is a reference, which this owns, to a device that looked right.
pub(crate) struct DeviceReference {
    ptr: NonNull<bindings::ib_device>,
}

// SAFETY: References are counted atomically, and may be given up by any thread.
unsafe impl Send for DeviceReference {}

// SAFETY: As for `Device`.
unsafe impl Sync for DeviceReference {}

impl DeviceReference {
    /// Calls `f` with the device.
    pub(crate) fn with<R>(&self, f: impl for<'d> FnOnce(Device<'d>) -> R) -> R {
        // SAFETY: The device stays registered, and thus valid, for as long as this is borrowed, and
        // `f` knows no more of the lifetime that it is given.
        f(unsafe { Device::from_raw(self.ptr) })
    }
}

impl Clone for DeviceReference {
    fn clone(&self) -> Self {
        self.with(|device| device.hold())
    }
}

impl Drop for DeviceReference {
    fn drop(&mut self) {
        // SAFETY: By the type invariant there is a reference, which ends here.
        unsafe { bindings::ib_device_put(self.ptr.as_ptr()) };
    }
}

/// Tells whether a device is laid out as the bindings say, as far as its name can show that.
///
/// `ib_core` keeps the name twice: in `ib_device.name` and, by `dev_set_name()`, as the name of the
/// kernel object. If the one or the other is not where it is looked for, they differ. What lies
/// behind them, and the other structures, are not seen by this.
///
/// Must be called while the device cannot be renamed.
pub(super) fn looks_right(device: NonNull<bindings::ib_device>) -> bool {
    const NAME_SIZE: usize = bindings::IB_DEVICE_NAME_MAX as usize;

    let at = |offset| device.as_ptr().cast::<u8>().wrapping_byte_add(offset);
    let mut name = [0; NAME_SIZE];
    let mut kernel_name = [0; size_of::<usize>()];
    let mut copy = [0; NAME_SIZE];

    if !copy_nofault(at(offset_of!(bindings::ib_device, name)), &mut name)
        || !copy_nofault(
            at(bindings::ib_core::IB_DEVICE_DEV)
                .wrapping_byte_add(offset_of!(bindings::device, kobj.name)),
            &mut kernel_name,
        )
    {
        return false;
    }

    let kernel_name = with_exposed_provenance(usize::from_ne_bytes(kernel_name));
    let length = name.split(|byte| *byte == 0).next().map_or(0, <[u8]>::len);

    // With the NUL; nameless is no device.
    match (name.get(..=length), copy.get_mut(..=length)) {
        (Some(name), Some(copy)) if length > 0 => copy_nofault(kernel_name, copy) && name == copy,
        _ => false,
    }
}

/// Copies memory of the kernel that may not be there; tells whether it is.
///
/// Not for addresses of devices: reading may have effects on them.
fn copy_nofault(from: *const u8, to: &mut [u8]) -> bool {
    // SAFETY: `to` is as large. The address may be any: `copy_from_kernel_nofault_allowed()` refuses
    // those that are not the kernel's, and a fault is found in the exception table.
    unsafe {
        bindings::copy_from_kernel_nofault(to.as_mut_ptr().cast(), from.cast(), to.len()) == 0
    }
}
