//! Messages of a client that runs a command in a container. Input: a byte of options, then one message; also read as the
//! header that names protocols.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tether_machinery::remote_command::{Input, Protocol, Streams, read};

/// An error must not carry a client's garbage on.
const MAX_ERROR_BYTES: usize = 1024;

fuzz_target!(|data: &[u8]| {
    let Some((options, message)) = data.split_first() else { return };
    let bit = |bit: u8| options & (1 << bit) != 0;
    let protocol = if bit(0) { Protocol::V5 } else { Protocol::V4 };
    let streams = Streams { stdin: bit(1), stdout: bit(2), stderr: bit(3), tty: bit(4) };
    match read(protocol, streams, message) {
        Ok(Input::Stdin(bytes)) => assert!(streams.stdin && bytes == &message[1..], "input is passed on as it is"),
        Ok(Input::StdinEnds) => assert!(streams.stdin && protocol == Protocol::V5),
        Ok(Input::Resize(_)) => assert!(streams.tty),
        Ok(Input::Nothing) => {}
        Err(error) => assert!(error.to_string().len() < MAX_ERROR_BYTES),
    }
    if let Ok(header) = std::str::from_utf8(message)
        && let Some(chosen) = Protocol::negotiate([header])
    {
        assert!(header.contains(chosen.name()), "only what was offered is chosen");
    }
});
