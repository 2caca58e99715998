// SPDX-License-Identifier: GPL-2.0

//! The `ib_core` that the module was built for, and the one that is running.
//!
//! OFED replaces the kernel's `ib_core` by one whose structures are laid out in another way, and
//! without `CONFIG_MODVERSIONS` the module loader does not notice. `struct ib_client` is concerned
//! as well, so a client cannot be registered without a [`Compatible`].

use crate::bindings::{
    self,
    ib_core, //
};
use kernel::{
    error::from_err_ptr,
    fmt,
    prelude::*,
    str::{
        as_char_ptr_in_const_context,
        BStr, //
    }, //
};

/// What the build recorded of the `ib_core` that it was for.
pub(crate) struct BuiltFor;

impl BuiltFor {
    /// Tells whether it was the kernel's own.
    pub(crate) fn is_in_tree(&self) -> bool {
        ib_core::IN_TREE
    }
}

impl fmt::Display for BuiltFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match ib_core::BUILD_ID {
            Some(build_id) => f.write_fmt(fmt!("{} ({})", Hex(build_id), ib_core::NAME)),
            None => f.write_str(ib_core::NAME),
        }
    }
}

/// The `ib_core` that is running lays its structures out as the bindings do, for all that is known.
#[derive(Clone, Copy)]
pub(crate) struct Compatible(());

impl Compatible {
    /// Takes the user's word for it.
    pub(crate) fn by_word_of_user() -> Self {
        Self(())
    }
}

/// Whether the `ib_core` that is running is the one that the module was built for.
pub(crate) enum Comparison {
    /// It is: its build-id is the recorded one, or it is part of the kernel.
    Same(Compatible),
    /// It is another one.
    Different(BuildId),
    /// It is another one: one was made with the kernel, and the other was not.
    OtherOrigin,
    /// The build recorded no build-id.
    NotRecorded(Compatible),
    /// The running one does not show its build-id.
    NotReadable(Compatible, Error),
}

/// Compares the `ib_core` that the module was built for with the running one: their build-ids, or
/// else whether they were made with the kernel.
///
/// Says nothing of a device driver that was built for yet another `ib_core`. May sleep.
pub(crate) fn compare() -> Comparison {
    let compatible = Compatible(());

    if ib_core::BUILT_IN {
        return Comparison::Same(compatible);
    }

    let without = match (ib_core::BUILD_ID, BuildId::of_running()) {
        (Some(recorded), Ok(running)) => match running.bytes() {
            Some(bytes) if bytes == recorded => return Comparison::Same(compatible),
            Some(_) => return Comparison::Different(running),
            None => Comparison::NotReadable(compatible, EINVAL),
        },
        (Some(_), Err(error)) => Comparison::NotReadable(compatible, error),
        (None, _) => Comparison::NotRecorded(compatible),
    };

    match is_running_in_tree() {
        Ok(in_tree) if in_tree != ib_core::IN_TREE => Comparison::OtherOrigin,
        _ => without,
    }
}

/// Tells whether the `ib_core` that is running was made with the kernel: a module that was not
/// taints it by `TAINT_OOT_MODULE`, shown as `O`.
///
/// # Errors
///
/// What [`read()`] returns.
fn is_running_in_tree() -> Result<bool> {
    let taint: [u8; 16] = read(c"/sys/module/ib_core/taint")?;

    Ok(!taint.contains(&b'O'))
}

/// Reads the beginning of a file of sysfs; what is behind its end is zero.
///
/// Not by `kernel_read_file_from_path()`: security modules want to know what such a file is for, and
/// have no word for these.
///
/// # Errors
///
/// `ENOENT` if there is no such file, or no sysfs at `/sys` for the process that loads the module.
fn read<const N: usize>(path: &CStr) -> Result<[u8; N]> {
    let mut bytes = [0; N];

    // SAFETY: The path is NUL-terminated.
    let file = from_err_ptr(unsafe {
        bindings::filp_open(
            as_char_ptr_in_const_context(path),
            bindings::O_RDONLY as c_int,
            0,
        )
    })?;

    // SAFETY: `filp_open()` has returned a file. C writes no more to the buffer than its size.
    let count = unsafe { bindings::kernel_read(file, bytes.as_mut_ptr().cast(), N, &mut 0) };

    // SAFETY: The reference of `filp_open()` is given back, and the file not used any more.
    unsafe { bindings::fput(file) };

    match c_int::try_from(count) {
        Ok(error) if error < 0 => Err(Error::from_errno(error)),
        _ => Ok(bytes),
    }
}

/// A build-id, within the ELF note that holds it.
pub(crate) struct BuildId {
    note: [u8; Self::NOTE_SIZE_MAX],
}

impl BuildId {
    /// The type of such a note, which no header of the kernel names.
    const NT_GNU_BUILD_ID: u32 = 3;

    /// Header and name are 16 bytes, and the longest build-id of `ld --build-id`, SHA-1, is 20.
    const NOTE_SIZE_MAX: usize = 64;

    /// Reads the note of the `ib_core` that is running.
    ///
    /// # Errors
    ///
    /// What [`read()`] returns; `ENOENT` also if `ib_core` was linked without a build-id.
    fn of_running() -> Result<Self> {
        Ok(Self {
            note: read(c"/sys/module/ib_core/notes/.note.gnu.build-id")?,
        })
    }

    /// Returns the build-id itself, if the note is one that holds a build-id.
    fn bytes(&self) -> Option<&[u8]> {
        let (name_size, rest) = self.note.split_first_chunk()?;
        let (size, rest) = rest.split_first_chunk()?;
        let (kind, rest) = rest.split_first_chunk()?;
        let (name, rest) = rest.split_first_chunk()?;

        if u32::from_ne_bytes(*name_size) != 4
            || u32::from_ne_bytes(*kind) != Self::NT_GNU_BUILD_ID
            || name != b"GNU\0"
        {
            return None;
        }

        rest.get(..usize::try_from(u32::from_ne_bytes(*size)).ok()?)
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Hex(self.bytes().unwrap_or_default()), f)
    }
}

/// Bytes in hexadecimal.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|byte| f.write_fmt(fmt!("{byte:02x}")))
    }
}

/// Returns the release of the kernel that is running, as `uname -r` shows it.
pub(crate) fn kernel_release() -> &'static BStr {
    // SAFETY: The name is NUL-terminated, and never changes: it is that of the first namespace.
    unsafe { bindings::c_string((&raw const bindings::init_uts_ns.name.release).cast()) }
}
