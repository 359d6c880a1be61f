//! The caller's side of an ioctl that a file system of this crate serves.

use std::os::fd::AsFd;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};

/// An ioctl whose argument is copied in and out (`_IOWR`).
struct Exchange<'a, const N: usize> {
    opcode: Opcode,
    argument: &'a mut [u8; N],
}

// SAFETY: `as_ptr` gives a pointer to `N` writable bytes that live as long as the call, and
// the callers verify that the opcode makes the kernel copy `N` bytes and no more. The file
// system gets the bytes themselves, never the address.
unsafe impl<const N: usize> Ioctl for Exchange<'_, N> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        self.argument.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(
        _: IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<Self::Output> {
        Ok(())
    }
}

/// The opcode of an ioctl whose argument of `size` bytes is copied in and out: `_IOWR(group,
/// number, size)` of Linux.
pub const fn exchange_opcode(group: u8, number: u8, size: u16) -> u32 {
    3 << 30 | (size as u32 & 0x3fff) << 16 | (group as u32) << 8 | number as u32
}

/// Calls an ioctl of an open file; `argument` is sent, and replaced by the answer.
///
/// # Errors
/// That of the file system; `ENOTTY` if the file's has no such ioctl. `EINVAL` for an opcode
/// whose argument does not have `N` bytes, or is not copied in both directions.
pub fn control<const N: usize>(
    file: impl AsFd,
    opcode: u32,
    argument: &mut [u8; N],
) -> std::io::Result<()> {
    let fd = file.as_fd();
    let copied = u16::try_from(N).is_ok_and(|n| {
        opcode == exchange_opcode((opcode >> 8) as u8, opcode as u8, n) && n & 0x3fff == n
    });
    if !copied {
        return Err(rustix::io::Errno::INVAL.into());
    }
    let exchange = Exchange { opcode: Opcode::from(opcode), argument };
    // SAFETY: the argument has the size that the opcode states (checked above).
    Ok(unsafe { rustix::ioctl::ioctl(fd, exchange) }?)
}

/// Calls an ioctl whose argument is copied in one direction (`_IOR`, `_IOW`).
///
/// # Errors
/// As [`control`], for an opcode that is not of this kind.
pub fn control_one_way<const N: usize>(
    file: impl AsFd,
    opcode: u32,
    argument: &mut [u8; N],
) -> std::io::Result<()> {
    let fd = file.as_fd();
    let size = (opcode >> 16) as usize & 0x3fff;
    if size != N || !matches!(opcode >> 30, 1 | 2) {
        return Err(rustix::io::Errno::INVAL.into());
    }
    let exchange = Exchange { opcode: Opcode::from(opcode), argument };
    // SAFETY: the argument has the size that the opcode states (checked above).
    Ok(unsafe { rustix::ioctl::ioctl(fd, exchange) }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_have_the_kernels_bits() {
        // FIDEDUPERANGE is _IOWR(0x94, 54, 24 bytes).
        assert_eq!(exchange_opcode(0x94, 54, 24), 0xc018_9436);
    }

    #[test]
    fn an_argument_of_another_size_is_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let opcode = exchange_opcode(0x5a, 1, 48);
        let errno = |e: std::io::Error| e.raw_os_error();
        let invalid = Some(rustix::io::Errno::INVAL.raw_os_error());
        assert_eq!(control(&file, opcode, &mut [0; 40]).map_err(errno), Err(invalid));
        assert_eq!(control(&file, opcode & !(1 << 31), &mut [0; 48]).map_err(errno), Err(invalid));
        assert_eq!(control_one_way(&file, opcode, &mut [0; 48]).map_err(errno), Err(invalid));
        // The device has no such ioctl.
        let none = Some(rustix::io::Errno::NOTTY.raw_os_error());
        assert_eq!(control(&file, opcode, &mut [0; 48]).map_err(errno), Err(none));
    }
}
