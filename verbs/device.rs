// SPDX-License-Identifier: GPL-2.0

//! RDMA devices.

use crate::bindings;
use core::{
    marker::PhantomData,
    mem::{
        offset_of,
        MaybeUninit, //
    },
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    str::BStr, //
};

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
    /// client's `remove` for this device returns, and must not be equal to that of any other
    /// device. The device must have looked right in `add`.
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

/// Tells whether a device is laid out as the bindings say, as far as its name can show that.
///
/// `ib_core` keeps the name twice: in `ib_device.name` and, by `dev_set_name()`, as the name of the
/// kernel object. If the one or the other is not where it is looked for, they differ. What lies
/// behind them, and the other structures, are not seen by this.
///
/// Must be called while the device cannot be renamed.
pub(super) fn looks_right(device: NonNull<bindings::ib_device>) -> bool {
    const NAME_SIZE: usize = bindings::IB_DEVICE_NAME_MAX as usize;

    let name = device
        .as_ptr()
        .wrapping_byte_add(offset_of!(bindings::ib_device, name));

    let Some(name) = read_nofault::<[u8; NAME_SIZE]>(name.cast()) else {
        return false;
    };

    // Nameless is no device.
    if name.first() == Some(&0) {
        return false;
    }

    let kernel_name = device
        .as_ptr()
        .wrapping_byte_add(bindings::ib_core::IB_DEVICE_DEV)
        .wrapping_byte_add(offset_of!(bindings::device, kobj.name));

    let Some(mut kernel_name) = read_nofault::<*const u8>(kernel_name.cast()) else {
        return false;
    };

    for byte in name {
        if read_nofault(kernel_name) != Some(byte) {
            return false;
        }

        if byte == 0 {
            return true;
        }

        kernel_name = kernel_name.wrapping_add(1);
    }

    false
}

/// What any bytes are a value of.
///
/// # Safety
///
/// It must be so.
unsafe trait AnyBytes: Copy {}

// SAFETY: Integers and raw pointers have no invalid values.
unsafe impl AnyBytes for u8 {}
// SAFETY: As above.
unsafe impl AnyBytes for *const u8 {}
// SAFETY: As above.
unsafe impl<const N: usize> AnyBytes for [u8; N] {}

/// Reads memory of the kernel that may not be there.
///
/// Not for addresses of devices: reading may have effects on them.
fn read_nofault<T: AnyBytes>(address: *const T) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();

    // SAFETY: There is room for a `T`. The address may be any: `copy_from_kernel_nofault_allowed()`
    // refuses those that are not the kernel's, and a fault is found in the exception table.
    let ret = unsafe {
        bindings::copy_from_kernel_nofault(
            value.as_mut_ptr().cast(),
            address.cast(),
            size_of::<T>(),
        )
    };

    // SAFETY: All bytes were copied if this is zero, and any bytes are a value.
    (ret == 0).then(|| unsafe { value.assume_init() })
}
