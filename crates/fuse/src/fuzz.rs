//! Entry for fuzzers: one message from a hostile kernel.

use std::io::{self, IoSlice};

use base::Buf;

use crate::abi::request::{Malformed, Proto, RequestBody, parse, write_data};
use crate::dispatch::{Call, Unanswered, run};
use crate::fs::{BlockingMode, Request};
use crate::null::NullFs;
use crate::transport::Channel;

/// Takes replies and checks their shape.
struct Checker;

impl Channel for Checker {
    fn reply(&self, message: &[IoSlice<'_>]) -> io::Result<()> {
        let total: usize = message.iter().map(|part| part.len()).sum();
        let stated = message.first().and_then(|head| head.first_chunk::<4>());
        let stated = stated.map_or(0, |len| u32::from_ne_bytes(*len));
        assert_eq!(usize::try_from(stated), Ok(total), "a reply states its own length");
        Ok(())
    }
}

/// Parses `data` as a request, in every form that negotiation can lead to, and
/// runs it on a small file system. For fuzzers and property tests: it panics
/// when an invariant does not hold, and on nothing else.
pub(crate) fn fuzz_request(data: &[u8]) {
    let fs = NullFs::new(1 << 20);
    for setxattr_ext in [false, true] {
        let (header, opcode, body) = match parse(data, Proto { setxattr_ext }) {
            Ok(parsed) => parsed,
            Err(Malformed::Header | Malformed::Body(_) | Malformed::Unknown(_)) => continue,
        };
        let payload = match &body {
            RequestBody::Write(arg) => {
                match write_data(data.len(), arg).and_then(|r| data.get(r)) {
                    Some(bytes) => Some(Buf::copy_of(bytes)),
                    None => continue,
                }
            }
            RequestBody::BatchForget(list) => {
                assert!(list.iter().count() <= data.len() / 16, "a list is inside its message");
                continue;
            }
            _ => None,
        };
        let req = Request { unique: header.unique, ..Request::default() };
        let unanswered = Unanswered::new(&Checker as &dyn Channel, req.unique);
        let outcome =
            run(&fs, &req, Call { header, opcode, body, payload }, BlockingMode::Blocking);
        unanswered.answer(&fs, &req, outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Wire;
    use crate::abi::structs::InHeader;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_message_is_survived(opcode in 0u32..60, node in 0u64..4, body in prop::collection::vec(
            prop_oneof![3 => Just(0u8), 1 => Just(b'x'), 1 => any::<u8>()], 0..160)) {
            let len = (InHeader::SIZE + body.len()) as u32;
            let mut msg = Vec::new();
            InHeader { len, opcode, unique: 2, nodeid: node, ..Default::default() }.put(&mut msg);
            msg.extend_from_slice(&body);
            fuzz_request(&msg);
        }
    }
}
