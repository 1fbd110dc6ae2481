//! What calls do when nothing goes wrong.

use std::cell::Cell;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use farfork_rpc::client::CallFailure;
use farfork_rpc::{Body, Call, CallError, Deferred, Handlers, Outgoing, PAYLOAD_BYTES_MAX, Status};

use crate::{ECHO, call, client_of, echo, poll_until, serve};

struct Add;

impl Call for Add {
    const ID: u32 = 40;
    type Request = (u64, u64);
    type Reply = u64;
}

#[test]
fn many_in_flight_on_several_sessions_are_all_answered() {
    let server = serve(2, echo);
    let (mut client, first) = client_of(server.address());
    let sessions = [first, client.open(100).unwrap(), client.open(1).unwrap()];
    let (asked, ended) = (Cell::new(0u64), Cell::new(0u64));
    while ended.get() < 20_000 {
        let now = Instant::now();
        for session in sessions {
            let call = |tag| Outgoing { handler: ECHO, tag, checked: tag % 2 == 0, ..Outgoing::default() };
            while asked.get() < 20_000 {
                let tag = asked.get();
                let payload = vec![tag as u8; tag as usize % 3000];
                if client.submit(now, session, &call(tag), Body::Copied(&payload)).is_err() {
                    break;
                }
                asked.set(tag + 1);
            }
        }
        client.poll(now, |completion| {
            let payload = completion.result.unwrap();
            assert!(payload.len() as u64 == completion.tag % 3000);
            assert!(payload.iter().all(|byte| *byte == completion.tag as u8));
            ended.set(ended.get() + 1);
        });
        client.wait(now, None).unwrap();
    }
    assert_eq!(client.unanswered(), 0);
}

#[test]
fn the_longest_payloads_go_both_ways() {
    let server = serve(1, || {
        let mut handlers = echo();
        handlers.on(2, |payload, reply| reply.give(payload.to_vec()));
        handlers
    });
    let (mut client, session) = client_of(server.address());
    let payload: Vec<u8> = (0..PAYLOAD_BYTES_MAX).map(|at| ((at * 31) >> 7) as u8).collect();
    for (handler, checked) in [(ECHO, false), (2, true)] {
        for body in [Body::Copied(&payload), Body::Given(payload.clone())] {
            let call = Outgoing { handler, checked, ..Outgoing::default() };
            assert!(client.call(session, &call, body, |_| {}).unwrap() == payload);
        }
    }
    let call = Outgoing { handler: ECHO, ..Outgoing::default() };
    let too_long = client.call(session, &call, Body::Given(vec![0; PAYLOAD_BYTES_MAX + 1]), |_| {});
    assert!(matches!(too_long, Err(CallFailure::Submit(_))));
}

#[test]
fn values_are_asked_and_answered() {
    let server = serve(1, || {
        let mut handlers = Handlers::default();
        handlers.on_call::<Add>(|(left, right)| left.checked_add(right).ok_or_else(|| "too large".to_owned()));
        handlers
    });
    let (mut client, session) = client_of(server.address());
    let call = Outgoing::default();
    assert_eq!(client.ask::<Add>(session, &call, &(20, 22)).unwrap(), 42);
    let refused = client.ask::<Add>(session, &call, &(u64::MAX, 1)).unwrap_err().to_string();
    assert!(refused.contains("too large"), "{refused}");
    let unknown = Outgoing { handler: 9, ..call };
    let unknown = client.call(session, &unknown, Body::Copied(&[]), |_| {}).unwrap_err();
    assert!(matches!(unknown, CallFailure::Call(CallError::Ended(Status::NoHandler))));
}

/// A server whose handler 5 passes requests on, to be answered by the test.
fn deferring() -> (farfork_rpc::Server, mpsc::Receiver<(Vec<u8>, Deferred)>) {
    let (passing, passed) = mpsc::channel();
    let server = serve(1, move || {
        let passing = passing.clone();
        let mut handlers = echo();
        handlers.on_deferred(5, move |payload, deferred| passing.send((payload.into_vec(), deferred)).unwrap());
        handlers
    });
    (server, passed)
}

#[test]
fn answers_may_come_later_and_out_of_order() {
    let (server, passed) = deferring();
    let (mut client, session) = client_of(server.address());
    let now = Instant::now();
    for tag in 0..3u64 {
        let call = Outgoing { handler: 5, tag, ..Outgoing::default() };
        client.submit(now, session, &call, Body::Copied(&tag.to_le_bytes())).unwrap();
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
                1 => assert_eq!(completion.result.unwrap_err(), CallError::Ended(Status::Abandoned)),
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
    let request = Outgoing { handler: 5, tag: 8, ..Outgoing::default() };
    client.submit(Instant::now(), session, &request, Body::Copied(&[])).unwrap();
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
    assert_eq!(call(&mut client, session, ECHO, b"y"), b"y", "the server has read what came before");
    assert!(deferred.is_cancelled());
    deferred.answer(b"too late".to_vec());
    assert_eq!(call(&mut client, session, ECHO, b"z"), b"z");
    assert_eq!((ended.get(), client.unanswered()), (1, 0));
}

#[test]
fn what_is_overdue_ends_and_never_begins() {
    let (executing, executed) = mpsc::channel();
    let server = serve(1, move || {
        let executing = executing.clone();
        let mut handlers = echo();
        handlers.on(6, |_, _| std::thread::sleep(Duration::from_millis(100)));
        handlers.on(7, move |payload, _| executing.send(payload.to_vec()).unwrap());
        handlers
    });
    let (mut client, session) = client_of(server.address());
    assert_eq!(call(&mut client, session, ECHO, b"x"), b"x");
    let now = Instant::now();
    let slow = Outgoing { handler: 6, tag: 1, ..Outgoing::default() };
    client.submit(now, session, &slow, Body::Copied(&[])).unwrap();
    let deadline = Some(now + Duration::from_millis(10));
    let hurried = Outgoing { handler: 7, tag: 2, deadline, ..Outgoing::default() };
    client.submit(now, session, &hurried, Body::Copied(b"hurried")).unwrap();
    let patient = Outgoing { handler: 7, tag: 3, deadline: Some(now + Duration::from_secs(60)), ..hurried };
    client.submit(now, session, &patient, Body::Copied(b"patient")).unwrap();
    let ended = Cell::new(0);
    poll_until(
        &mut client,
        |completion| {
            ended.set(ended.get() + 1);
            let overdue = matches!(completion.result, Err(CallError::Overdue));
            assert_eq!(overdue, completion.tag == 2);
        },
        || ended.get() == 3,
    );
    assert_eq!(executed.try_iter().collect::<Vec<_>>(), [b"patient".to_vec()]);
}
