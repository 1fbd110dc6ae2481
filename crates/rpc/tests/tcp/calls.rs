//! Calls over TCP without faults.

use std::cell::Cell;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use farfork_rpc::client::BlockingCallError;
use farfork_rpc::{
    CallError, DeferredReply, HandlerTable, OutgoingRequest, PAYLOAD_BYTES_MAX, RequestPayload, Status, TypedCall,
};

use crate::{ECHO, call, client_of, echo, poll_until, serve};

struct Add;

impl TypedCall for Add {
    const ID: u32 = 40;
    type Request = (u64, u64);
    type Reply = u64;
}

#[test]
fn many_requests_of_several_sessions_are_all_answered() {
    let server = serve(2, echo);
    let (mut client, first) = client_of(server.address());
    let sessions = [first, client.open_session(100).unwrap(), client.open_session(1).unwrap()];
    let (submitted, ended) = (Cell::new(0u64), Cell::new(0u64));
    while ended.get() < 20_000 {
        let now = Instant::now();
        for session in sessions {
            let call =
                |tag| OutgoingRequest { handler: ECHO, tag, checked: tag % 2 == 0, ..OutgoingRequest::default() };
            while submitted.get() < 20_000 {
                let tag = submitted.get();
                let payload = vec![tag as u8; tag as usize % 3000];
                if client.submit(now, session, &call(tag), RequestPayload::Borrowed(&payload)).is_err() {
                    break;
                }
                submitted.set(tag + 1);
            }
        }
        client.poll(now, |completion| {
            let payload = completion.result.unwrap();
            assert!(payload.len() as u64 == completion.tag % 3000);
            assert!(payload.iter().all(|byte| *byte == completion.tag as u8));
            ended.set(ended.get() + 1);
        });
        client.wait_ready(now, None).unwrap();
    }
    assert_eq!(client.unanswered_count(), 0);
}

#[test]
fn the_longest_payloads_are_sent_and_received() {
    let server = serve(1, || {
        let mut handlers = echo();
        handlers.add_handler(2, |payload, reply| reply.set_payload(payload.to_vec()));
        handlers
    });
    let (mut client, session) = client_of(server.address());
    let payload: Vec<u8> = (0..PAYLOAD_BYTES_MAX).map(|at| ((at * 31) >> 7) as u8).collect();
    for (handler, checked) in [(ECHO, false), (2, true)] {
        for body in [RequestPayload::Borrowed(&payload), RequestPayload::Owned(payload.clone())] {
            let call = OutgoingRequest { handler, checked, ..OutgoingRequest::default() };
            assert!(client.call_blocking(session, &call, body, |_| {}).unwrap() == payload);
        }
    }
    let call = OutgoingRequest { handler: ECHO, ..OutgoingRequest::default() };
    let too_long = client.call_blocking(session, &call, RequestPayload::Owned(vec![0; PAYLOAD_BYTES_MAX + 1]), |_| {});
    assert!(matches!(too_long, Err(BlockingCallError::Submit(_))));
}

#[test]
fn typed_calls_return_typed_values() {
    let server = serve(1, || {
        let mut handlers = HandlerTable::default();
        handlers
            .add_typed_handler::<Add>(|(left, right)| left.checked_add(right).ok_or_else(|| "too large".to_owned()));
        handlers
    });
    let (mut client, session) = client_of(server.address());
    let call = OutgoingRequest::default();
    assert_eq!(client.call_typed::<Add>(session, &call, &(20, 22)).unwrap(), 42);
    let refused = client.call_typed::<Add>(session, &call, &(u64::MAX, 1)).unwrap_err().to_string();
    assert!(refused.contains("too large"), "{refused}");
    let unknown = OutgoingRequest { handler: 9, ..call };
    let unknown = client.call_blocking(session, &unknown, RequestPayload::Borrowed(&[]), |_| {}).unwrap_err();
    assert!(matches!(unknown, BlockingCallError::Call(CallError::Status(Status::NoHandler))));
}

/// Starts a server whose handler 5 passes requests to the test, which replies.
fn deferring() -> (farfork_rpc::Server, mpsc::Receiver<(Vec<u8>, DeferredReply)>) {
    let (passing, passed) = mpsc::channel();
    let server = serve(1, move || {
        let passing = passing.clone();
        let mut handlers = echo();
        handlers
            .add_deferred_handler(5, move |payload, deferred| passing.send((payload.into_vec(), deferred)).unwrap());
        handlers
    });
    (server, passed)
}

#[test]
fn deferred_answers_may_arrive_out_of_order() {
    let (server, passed) = deferring();
    let (mut client, session) = client_of(server.address());
    let now = Instant::now();
    for tag in 0..3u64 {
        let call = OutgoingRequest { handler: 5, tag, ..OutgoingRequest::default() };
        client.submit(now, session, &call, RequestPayload::Borrowed(&tag.to_le_bytes())).unwrap();
    }
    client.poll(now, |_| panic!("nothing was answered"));
    assert_eq!(call(&mut client, session, ECHO, b"meanwhile"), b"meanwhile");
    let answering = std::thread::spawn(move || {
        let waiting: Vec<_> = (0..3).map(|_| passed.recv().unwrap()).collect();
        for (payload, deferred) in waiting.into_iter().rev() {
            match payload[0] {
                1 => drop(deferred),
                _ => deferred.answer(payload),
            }
        }
    });
    let ended = Cell::new(0);
    poll_until(
        &mut client,
        |completion| {
            ended.set(ended.get() + 1);
            match completion.tag {
                1 => assert_eq!(completion.result.unwrap_err(), CallError::Status(Status::Abandoned)),
                tag => assert_eq!(*completion.result.unwrap(), tag.to_le_bytes()),
            }
        },
        || ended.get() == 3,
    );
    answering.join().unwrap();
}

#[test]
fn a_cancelled_request_ends_at_once_and_its_handler_sees_it() {
    let (server, passed) = deferring();
    let (mut client, session) = client_of(server.address());
    let request = OutgoingRequest { handler: 5, tag: 8, ..OutgoingRequest::default() };
    client.submit(Instant::now(), session, &request, RequestPayload::Borrowed(&[])).unwrap();
    client.poll(Instant::now(), |_| panic!("nothing was answered"));
    assert_eq!(call(&mut client, session, ECHO, b"x"), b"x");
    let (_, deferred) = passed.recv().unwrap();
    assert!(!deferred.is_cancelled() && client.cancel(session, 8) && !client.cancel(session, 8));
    let ended = Cell::new(0);
    let on_end = |completion: farfork_rpc::Completion<'_>| {
        assert_eq!(completion.result.unwrap_err(), CallError::Cancelled);
        ended.set(ended.get() + 1);
    };
    poll_until(&mut client, on_end, || ended.get() == 1);
    assert_eq!(call(&mut client, session, ECHO, b"y"), b"y", "the server has received the CANCEL frame");
    assert!(deferred.is_cancelled());
    deferred.answer(b"too late".to_vec());
    assert_eq!(call(&mut client, session, ECHO, b"z"), b"z");
    assert_eq!((ended.get(), client.unanswered_count()), (1, 0));
}

#[test]
fn an_overdue_request_is_never_executed() {
    let (executing, executed) = mpsc::channel();
    let server = serve(1, move || {
        let executing = executing.clone();
        let mut handlers = echo();
        handlers.add_handler(6, |_, _| std::thread::sleep(Duration::from_millis(100)));
        handlers.add_handler(7, move |payload, _| executing.send(payload.to_vec()).unwrap());
        handlers
    });
    let (mut client, session) = client_of(server.address());
    assert_eq!(call(&mut client, session, ECHO, b"x"), b"x");
    let now = Instant::now();
    let slow = OutgoingRequest { handler: 6, tag: 1, ..OutgoingRequest::default() };
    client.submit(now, session, &slow, RequestPayload::Borrowed(&[])).unwrap();
    let deadline = Some(now + Duration::from_millis(10));
    let hurried = OutgoingRequest { handler: 7, tag: 2, deadline, ..OutgoingRequest::default() };
    client.submit(now, session, &hurried, RequestPayload::Borrowed(b"hurried")).unwrap();
    let patient = OutgoingRequest { handler: 7, tag: 3, deadline: Some(now + Duration::from_secs(60)), ..hurried };
    client.submit(now, session, &patient, RequestPayload::Borrowed(b"patient")).unwrap();
    let ended = Cell::new(0);
    poll_until(
        &mut client,
        |completion| {
            ended.set(ended.get() + 1);
            let overdue = matches!(completion.result, Err(CallError::DeadlineExceeded));
            assert_eq!(overdue, completion.tag == 2);
        },
        || ended.get() == 3,
    );
    assert_eq!(executed.try_iter().collect::<Vec<_>>(), [b"patient".to_vec()]);
}
