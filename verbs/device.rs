// SPDX-License-Identifier: GPL-2.0

//! RDMA devices.

use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::str::BStr;

/// A device that `ib_core` has lent to a client.
///
/// `'d` is the time from the client's `add` for this device until its `remove` returns. It is
/// invariant, and each call of `add` has one of its own, so that objects of two devices cannot be
/// mistaken for one another: such code does not compile.
///
/// The device's name is not part of this type since it can change at any moment outside the
/// callbacks of [`Client`](super::client::Client); those are given the name.
///
/// # Invariants
///
/// `ptr` points to a `struct ib_device` that stays valid for `'d`.
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
    /// client's `remove` for this device returns, and must not be equal to that of any other
    /// device.
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

    /// Returns how many completion vectors the device has.
    pub(super) fn completion_vectors(self) -> u32 {
        // SAFETY: By the type invariant the device is valid. Drivers set the number before they
        // register the device.
        let vectors = unsafe { (*self.as_raw()).num_comp_vectors };

        u32::try_from(vectors).unwrap_or(0)
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
