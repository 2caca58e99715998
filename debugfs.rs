// SPDX-License-Identifier: GPL-2.0

//! Files in debugfs that show something.
//!
//! The files of the kernel crate (as of Linux 7.3) do not say which module they are of: it can be
//! unloaded while one is open, and closing that one runs into memory that is gone. With these it
//! stays loaded, as with those of C.
//!
//! C header: [`include/linux/debugfs.h`](srctree/include/linux/debugfs.h)

use core::marker::PhantomData;
use kernel::{
    bindings, fmt, new_mutex,
    prelude::*,
    seq_file::{
        seq_print,
        SeqFile, //
    },
    str::{
        as_char_ptr_in_const_context,
        CString, //
    },
    sync::{
        Arc,
        Mutex, //
    },
};

/// A directory; removed when dropped, with all that is in it.
///
/// One that could not be made is none, and so is what is made in it: debugfs is there to look at, and
/// nothing depends on it.
///
/// # Invariants
///
/// The pointer is what `debugfs_create_dir()` returned, an error included.
struct Directory(*mut bindings::dentry);

// SAFETY: debugfs has locks of its own, whoever calls it.
unsafe impl Send for Directory {}
// SAFETY: As above.
unsafe impl Sync for Directory {}

impl Directory {
    /// Makes a directory at the top.
    fn new(name: &CStr) -> Self {
        // SAFETY: The name is NUL-terminated. Without a parent it goes to the top.
        // INVARIANT: It is what is returned.
        Self(unsafe {
            bindings::debugfs_create_dir(as_char_ptr_in_const_context(name), core::ptr::null_mut())
        })
    }

    fn subdirectory(&self, name: &CStr) -> Self {
        // SAFETY: The name is NUL-terminated. The parent is a directory, or an error, which is
        // returned again.
        // INVARIANT: It is what is returned.
        Self(unsafe { bindings::debugfs_create_dir(as_char_ptr_in_const_context(name), self.0) })
    }

    /// Tells whether there is something of that name in it.
    fn has(&self, name: &CStr) -> bool {
        // SAFETY: The name is NUL-terminated. The directory is one, or an error, where nothing is
        // found.
        let found = unsafe { bindings::debugfs_lookup(as_char_ptr_in_const_context(name), self.0) };

        if found.is_null() {
            return false;
        }

        // SAFETY: The reference that `debugfs_lookup()` has taken is given back.
        unsafe { bindings::dput(found) };
        true
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. Errors are ignored. Nobody uses the directory any more:
        // what is made in it has gone, or goes with it. Who is reading a file is waited for.
        unsafe { bindings::debugfs_remove(self.0) };
    }
}

/// A directory at the top, in which each [`File`] has one of its own; removed when dropped.
#[pin_data]
pub(crate) struct Top {
    directory: Directory,
    /// Held from when a name is looked for that is free until it is not any more.
    #[pin]
    naming: Mutex<()>,
}

impl Top {
    /// Makes the directory.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; not if debugfs has failed.
    pub(crate) fn new(name: &CStr) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                directory: Directory::new(name),
                naming <- new_mutex!(()),
            }),
            GFP_KERNEL,
        )
    }

    /// Makes a directory in it, with a number behind its name if that is taken: `name.2` and so on,
    /// the first that is free. Returns that name, too.
    fn subdirectory(&self, name: &CStr) -> Result<(Directory, Option<CString>)> {
        let _naming = self.naming.lock();
        let mut numbered = None;
        let mut number = 2u32;

        while self.directory.has(numbered.as_deref().unwrap_or(name)) {
            numbered = Some(with_number(name, number)?);
            number = number.wrapping_add(1);
        }

        let directory = self
            .directory
            .subdirectory(numbered.as_deref().unwrap_or(name));

        Ok((directory, numbered))
    }
}

/// Returns a name with a number behind it.
///
/// # Errors
///
/// `ENOMEM`.
// By itself, as what it takes of the stack would be there all the time in its caller.
#[cold]
fn with_number(name: &CStr, number: u32) -> Result<CString> {
    CString::try_from_fmt(fmt!("{name}.{number}"))
}

/// A file that only root can read, in a directory of its own; removed when dropped.
pub(crate) struct File<T: fmt::Display + Send + Sync + 'static> {
    // The order matters: first the file goes, with its directory, and then what it shows.
    _directory: Directory,
    _parent: Arc<Top>,
    _contents: KBox<T>,
    other_name: Option<CString>,
}

impl<T: fmt::Display + Send + Sync + 'static> File<T> {
    /// Makes a directory in another one, and a file in it that shows `contents` as it is when it is
    /// read. If there is such a directory already, it gets another name.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; not if debugfs has failed.
    pub(crate) fn new(
        parent: Arc<Top>,
        directory: &CStr,
        name: &CStr,
        contents: T,
    ) -> Result<Self> {
        let contents = KBox::new(contents, GFP_KERNEL)?;
        let (directory, other_name) = parent.subdirectory(directory)?;

        // SAFETY: The name is NUL-terminated. The directory is one, or an error, in which case none
        // is made. What is shown stays until the file has been removed, which waits for readers.
        // The operations go with such a file, and are static; debugfs does not change them.
        unsafe {
            bindings::debugfs_create_file_full(
                as_char_ptr_in_const_context(name),
                Self::MODE,
                directory.0,
                (&raw const *contents).cast_mut().cast(),
                core::ptr::null(),
                &raw const Operations::<T>::OPERATIONS.0,
            )
        };

        Ok(Self {
            _directory: directory,
            _parent: parent,
            _contents: contents,
            other_name,
        })
    }

    /// Returns the name of its directory, if that is not the one that was wanted.
    pub(crate) fn other_name(&self) -> Option<&CStr> {
        self.other_name.as_deref()
    }

    const MODE: bindings::umode_t = 0o400;
}

/// The operations of a [`File`].
struct Operations<T>(bindings::file_operations, PhantomData<T>);

impl<T: fmt::Display + Send + Sync + 'static> Operations<T> {
    const OPERATIONS: &'static Self = &Self(
        bindings::file_operations {
            owner: (&raw const bindings::__this_module).cast_mut(),
            open: Some(Self::open),
            read: Some(bindings::seq_read),
            llseek: Some(bindings::seq_lseek),
            release: Some(bindings::single_release),
            ..pin_init::zeroed()
        },
        PhantomData,
    );

    /// `file_operations.open`.
    ///
    /// # Safety
    ///
    /// Must be called by debugfs only, for a [`File<T>`].
    unsafe extern "C" fn open(inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
        // SAFETY: By the safety requirement the inode has the contents as its private data, and
        // `show()` gets them, for as long as the file has not been removed.
        unsafe { bindings::single_open(file, Some(Self::show), (*inode).i_private) }
    }

    /// Prints the contents to a `struct seq_file`.
    ///
    /// # Safety
    ///
    /// Must be called by `seq_read()` only, of a file that `open()` has opened.
    unsafe extern "C" fn show(seq: *mut bindings::seq_file, _: *mut c_void) -> c_int {
        // SAFETY: By the safety requirement. debugfs does not remove the file meanwhile, and nobody
        // borrows the contents exclusively.
        let contents = unsafe { &*(*seq).private.cast::<T>() };

        // SAFETY: By the safety requirement; `seq_read()` has locked it.
        seq_print!(unsafe { SeqFile::from_raw(seq) }, "{contents}");

        0
    }
}
