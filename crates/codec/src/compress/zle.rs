//! zle (chapter 02 §7.2): runs of zeros and literals, with n = 64.

const N: usize = 64;
/// Longest run of zeros in one control byte.
const ZEROS_MAX: usize = 256 - N;

/// Fills at least the first `n` bytes of `dst`; false if the stream is bad.
pub(super) fn decompress(src: &[u8], dst: &mut [u8], n: usize) -> bool {
    decode(src, dst, n).is_some()
}

fn decode(mut src: &[u8], dst: &mut [u8], n: usize) -> Option<()> {
    let mut at = 0;
    while at < n {
        let (&control, rest) = src.split_first()?;
        src = rest;
        let len = usize::from(control) + 1;
        if len <= N {
            let len = len.min(dst.len() - at);
            let (literals, rest) = src.split_at_checked(len)?;
            dst.get_mut(at..at + len)?.copy_from_slice(literals);
            src = rest;
            at += len;
        } else {
            let len = (len - N).min(dst.len() - at);
            dst.get_mut(at..at + len)?.fill(0);
            at += len;
        }
    }
    Some(())
}

/// Compresses into `dst`; `None` if it does not fit.
pub(super) fn compress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let mut at = 0;
    let mut out = 0;
    while let Some(rest) = src.get(at..).filter(|r| !r.is_empty()) {
        let zeros = rest.iter().take(ZEROS_MAX).take_while(|&&b| b == 0).count();
        // A lone zero before data is cheaper as a literal.
        if zeros >= 2 || zeros == rest.len() || (zeros == 1 && rest.len() == 1) {
            *dst.get_mut(out)? = (zeros - 1 + N) as u8;
            out += 1;
            at += zeros;
            continue;
        }
        let window = rest.get(..N).unwrap_or(rest);
        let len = window.windows(2).position(|w| w == [0, 0]).unwrap_or(window.len()).max(1);
        *dst.get_mut(out)? = (len - 1) as u8;
        dst.get_mut(out + 1..out + 1 + len)?.copy_from_slice(rest.get(..len)?);
        out += 1 + len;
        at += len;
    }
    Some(out)
}
