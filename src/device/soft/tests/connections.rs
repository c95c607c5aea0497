//! How connections are made and ended.

use super::*;
use crate::device::soft::transport::shm;

#[test]
fn what_a_request_says() {
    over_all_paths(|net| {
        let a = End::new(&net.active, attr());
        let (server, qual) = Server::any(&net.passive);
        let most = net.active.attr().max_private_data as usize;
        a.connect(qual, &pattern(most, 0)).unwrap();
        let request = server.next();
        assert_eq!(request.private_data(), pattern(most, 0));
        assert_eq!(request.local_addr().ip(), net.passive.address().ip());
        assert_eq!(u64::from(request.local_addr().port()), qual);
        assert_eq!(request.remote_addr().ip(), net.active.address().ip());
        assert_eq!(
            (request.peer_rd_in(), request.peer_rd_out()),
            (Some(4), Some(4))
        );
        let b = End::new(&net.passive, attr());
        net.passive
            .accept(request, &b.qp, &pattern(most, 1))
            .unwrap();
        assert_eq!(a.event(), established(&pattern(most, 1)));
        assert_eq!(b.event(), established(b""));
        let (local, remote) = a.qp.addrs().unwrap();
        assert_eq!(local.ip(), net.active.address().ip());
        assert_eq!(u64::from(remote.port()), qual);
        assert_eq!(u64::from(b.qp.addrs().unwrap().0.port()), qual);
        let too_much = vec![0; most + 1];
        let c = End::new(&net.active, attr());
        assert_eq!(c.connect(qual, &too_much), Err(DeviceError::Limit));
        assert_eq!(c.connect(0, b""), Err(DeviceError::BadAddress));
        // The qualifier and the address are free of each other: a port there is ignored.
        assert_eq!(a.connect(qual, b""), Err(DeviceError::Unsupported));
    });
}

#[test]
fn requests_can_be_refused() {
    over_all_paths(|net| {
        let (server, qual) = Server::any(&net.passive);
        let a = End::new(&net.active, attr());
        a.recv(1, &[]).unwrap();
        a.connect(qual, b"").unwrap();
        net.passive.reject(server.next(), b"no room");
        let private_data = b"no room"[..].into();
        assert_eq!(a.event(), CmEvent::PeerRejected { private_data });
        assert_eq!(a.received_as(), (1, WcStatus::Flushed));
        a.qp.reset();
        a.connect(qual, b"").unwrap();
        drop(server.next());
        assert_eq!(a.event(), CmEvent::NonPeerRejected);
        a.qp.reset();
        drop(server.listener);
        a.connect(qual, b"").unwrap();
        assert_eq!(a.event(), CmEvent::NonPeerRejected);
        a.no_event();
    });
}

#[test]
fn nobody_answers() {
    over_all_paths(|net| {
        let (server, qual) = Server::any(&net.passive);
        let a = End::new(&net.active, attr());
        let to = net.passive.address();
        let mut limit = Duration::from_millis(250);
        // A busy machine may take longer until the request has arrived.
        let late = loop {
            let begun = Instant::now();
            let private_data = limit.as_millis().to_string();
            let private_data = private_data.as_bytes();
            (net.active)
                .connect(&a.qp, to, qual, Some(limit), private_data)
                .unwrap();
            assert_eq!(a.event(), CmEvent::TimedOut);
            assert!(begun.elapsed() >= limit);
            let arrived = server.requests.try_iter();
            let mut of_this = arrived.filter(|request| request.private_data() == private_data);
            if let Some(request) = of_this.next() {
                break request;
            }
            a.qp.reset();
            limit *= 4;
        };
        // The answer is too late.
        let b = End::new(&net.passive, attr());
        until_gone(net, late, &b);
        a.no_event();
    });
}

/// Accepts a request whose sender has gone: that shows at once, or a little later.
fn until_gone(net: &Net, request: ConnRequest, b: &End) {
    net.passive.accept(request, &b.qp, b"").unwrap();
    assert_eq!(b.event(), CmEvent::AcceptError);
}

#[test]
fn an_attempt_is_given_up() {
    over_all_paths(|net| {
        for graceful in [false, true] {
            let (server, qual) = Server::any(&net.passive);
            let a = End::new(&net.active, attr());
            a.recv(1, &[]).unwrap();
            a.connect(qual, b"").unwrap();
            let request = server.next();
            a.qp.disconnect(graceful);
            assert_eq!(a.event(), CmEvent::Disconnected);
            assert_eq!(a.received_as(), (1, WcStatus::Flushed));
            let b = End::new(&net.passive, attr());
            until_gone(net, request, &b);
        }
    });
}

/// What the peer sends waits until the consumer has the event of the connection.
#[test]
fn nothing_arrives_before_the_connection() {
    over_all_paths(|net| {
        // Over loopback one thread delivers the events of both ends, that of the active one first.
        let sides: &[bool] = if net.is_loopback() {
            &[true]
        } else {
            &[true, false]
        };
        for passive_late in sides {
            let (a, b) = (
                End::new(&net.active, attr()),
                End::new(&net.passive, attr()),
            );
            let (late, early) = if *passive_late { (&b, &a) } else { (&a, &b) };
            late.recv(1, &[late.sge(0, 8)]).unwrap();
            let (server, qual) = Server::any(&net.passive);
            a.connect(qual, b"").unwrap();
            let held = late.hold.lock();
            let (passive, qp, request) = (net.passive.clone(), b.qp.clone(), server.next());
            let accept = std::thread::spawn(move || passive.accept(request, &qp, b"").unwrap());
            // The handler has begun, in another thread than this.
            assert_eq!(late.event(), established(b""));
            assert_eq!(early.event(), established(b""));
            early.fill(0, b"writtensent now");
            let write = SendOp::RdmaWrite(late.remote(64));
            early.post(1, write, &[early.sge(0, 7)]).unwrap();
            early.post(2, SendOp::Send, &[early.sge(7, 8)]).unwrap();
            let end = Instant::now() + Duration::from_millis(20);
            while Instant::now() < end {
                net.active.progress();
                net.passive.progress();
                assert_eq!(late.recv_cq.poll(), None);
                assert_eq!(late.bytes(64, 7), [0; 7]);
            }
            drop(held);
            assert_eq!(late.received_as(), (1, WcStatus::Success));
            assert_eq!(late.bytes(0, 8), b"sent now");
            assert_eq!(late.bytes(64, 7), b"written");
            assert_eq!(early.sent_as(), (1, WcStatus::Success));
            assert_eq!(early.sent_as(), (2, WcStatus::Success));
            accept.join().unwrap();
        }
    });
}

/// The handler that gets the event of the connection may wait for what the peer sends.
#[test]
fn a_handler_starts_to_receive() {
    over_all_paths(|net| {
        let (a, b) = (
            End::new(&net.active, attr()),
            End::new(&net.passive, attr()),
        );
        b.recv(1, &[]).unwrap();
        let (server, qual) = Server::any(&net.passive);
        a.connect(qual, b"").unwrap();
        let held = b.hold.lock();
        let (passive, qp, request) = (net.passive.clone(), b.qp.clone(), server.next());
        let accept = std::thread::spawn(move || passive.accept(request, &qp, b"").unwrap());
        assert_eq!(b.event(), established(b""));
        assert_eq!(a.event(), established(b""));
        a.post(1, SendOp::Send, &[]).unwrap();
        b.qp.start_receiving();
        assert_eq!(b.received_as(), (1, WcStatus::Success));
        drop(held);
        accept.join().unwrap();
    });
}

#[test]
fn abrupt_end() {
    over_all_paths(|net| {
        for by_active in [true, false] {
            let (a, b) = net.pair();
            (1..3).for_each(|i| a.recv(i, &[]).unwrap());
            (3..5).for_each(|i| b.recv(i, &[]).unwrap());
            if by_active { &a } else { &b }.qp.disconnect(false);
            assert_eq!(a.event(), CmEvent::Disconnected);
            assert_eq!(b.event(), CmEvent::Disconnected);
            for i in 1..3 {
                assert_eq!(a.received_as(), (i, WcStatus::Flushed));
                assert_eq!(b.received_as(), (i + 2, WcStatus::Flushed));
            }
            a.qp.disconnect(false);
            b.qp.disconnect(true);
            a.no_event();
            b.no_event();
        }
    });
}

#[test]
fn graceful_end_finishes_what_was_queued() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        let data = pattern(200_000, 2);
        a.fill(0, &data);
        b.fill(BUFFER / 2, &data);
        let op = SendOp::RdmaRead {
            remote: b.remote(BUFFER / 2),
            len: 200_000,
        };
        a.post(1, op, &[a.sge(BUFFER / 2, 200_000)]).unwrap();
        a.post(2, SendOp::Send, &[a.sge(0, 200_000)]).unwrap();
        a.qp.disconnect(true);
        a.qp.disconnect(true);
        b.recv(3, &[b.sge(0, 200_000)]).unwrap();
        assert_eq!(a.sent_as(), (1, WcStatus::Success));
        assert_eq!(a.sent_as(), (2, WcStatus::Success));
        assert_eq!(b.received_as(), (3, WcStatus::Success));
        assert!(b.bytes(0, 200_000) == data);
        assert!(a.bytes(BUFFER / 2, 200_000) == data);
        assert_eq!(a.event(), CmEvent::Disconnected);
        assert_eq!(b.event(), CmEvent::Disconnected);
    });
}

#[test]
fn a_queue_pair_is_used_again() {
    over_all_paths(|net| {
        let (server, qual) = Server::any(&net.passive);
        let (a, b) = (
            End::new(&net.active, attr()),
            End::new(&net.passive, attr()),
        );
        for round in 0..5u8 {
            a.connect(qual, b"").unwrap();
            net.passive.accept(server.next(), &b.qp, b"").unwrap();
            assert_eq!(a.event(), established(b""));
            assert_eq!(b.event(), established(b""));
            b.recv(1, &[b.sge(0, 10)]).unwrap();
            b.recv(2, &[b.sge(0, 10)]).unwrap();
            a.fill(0, &[round; 10]);
            a.post(3, SendOp::Send, &[a.sge(0, 10)]).unwrap();
            assert_eq!(b.received_as(), (1, WcStatus::Success));
            assert_eq!(b.bytes(0, 10), [round; 10]);
            a.qp.disconnect(false);
            assert_eq!(a.event(), CmEvent::Disconnected);
            assert_eq!(b.event(), CmEvent::Disconnected);
            // Completions that were not taken are removed with the connection.
            a.qp.reset();
            b.qp.reset();
            a.idle();
            b.idle();
            assert_eq!(a.qp.addrs(), None);
        }
        // What was posted before a connection stays over a reset.
        b.recv(9, &[]).unwrap();
        b.qp.reset();
        assert_eq!(b.qp.recv_outstanding(), 1);
    });
}

#[test]
fn destroying_one_end_disconnects_the_other() {
    over_all_paths(|net| {
        let (a, b) = net.pair();
        a.recv(1, &[]).unwrap();
        b.recv(2, &[]).unwrap();
        a.qp.destroy();
        assert_eq!(b.event(), CmEvent::Disconnected);
        assert_eq!(b.received_as(), (2, WcStatus::Flushed));
        a.idle();
        a.no_event();
        assert_eq!(a.recv(1, &[]), Err(PostError::QueueFull));
        assert_eq!(a.post(1, SendOp::Send, &[]), Err(PostError::NotConnected));
    });
}

/// A server may begin to listen a quarter of a second after its client has begun to connect.
#[test]
fn who_listens_is_awaited() {
    over_all_paths(|net| {
        let (server, qual) = Server::any(&net.passive);
        drop(server);
        let a = End::new(&net.active, attr());
        let begun = Instant::now();
        a.connect(qual, b"").unwrap();
        assert_eq!(a.event(), CmEvent::NonPeerRejected);
        assert!(begun.elapsed() >= Duration::from_millis(250));
    });
}

#[test]
fn a_qualifier_belongs_to_one_listener() {
    over_all_paths(|net| {
        for other in [&net.passive, &net.active] {
            for qual in [0, 0x0000_0a00_0000_0001] {
                let (server, qual) = match qual {
                    0 => Server::any(&net.passive),
                    wide => (Server::on(&net.passive, wide).unwrap(), wide),
                };
                let again = Server::on(other, qual).map(|_| ());
                assert_eq!(again, Err(DeviceError::QualInUse));
                drop(server);
                drop(Server::on(other, qual).unwrap());
            }
        }
        let zero = Server::on(&net.passive, 0).map(|_| ());
        assert_eq!(zero, Err(DeviceError::BadAddress));
    });
}

#[test]
fn a_port_that_another_program_has() {
    let device = Soft::open("127.0.0.1").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let qual = u64::from(taken.local_addr().unwrap().port());
    let server = Server::on(&device, qual).map(|_| ());
    assert_eq!(server, Err(DeviceError::QualInUse));
}

#[test]
fn a_port_that_a_connection_of_ours_has() {
    let net = Net::new("127.0.0.1 path=tcp");
    let is_free_for_a_server = || {
        let (a, b) = net.pair();
        let qual = u64::from(a.qp.addrs().unwrap().0.port());
        let connected = Server::on(&net.active, qual).map(|_| ());
        // TCP keeps the port for a minute.
        a.qp.disconnect(false);
        assert_eq!(a.event(), CmEvent::Disconnected);
        assert_eq!(b.event(), CmEvent::Disconnected);
        let disconnected = Server::on(&net.active, qual).map(|_| ());
        [connected, disconnected] == [Ok(()), Ok(())]
    };
    // A program elsewhere on the machine may have a connection from the same port to another address, and
    // that keeps servers away. It does not have five in a row.
    assert!((0..5).any(|_| is_free_for_a_server()));
}

/// Otherwise who listens on a port that was just closed would be reached over TCP only.
#[test]
fn who_gets_a_port_gets_its_local_name() {
    let device = Soft::open("127.0.0.1").unwrap();
    for _ in 0..200 {
        let (server, qual) = Server::any(&device);
        let target = SocketAddr::new([127, 0, 0, 1].into(), qual as u16);
        let local_name = std::thread::scope(|s| {
            let next = s.spawn(move || {
                // Without a pause, which would be longer than what the two may be apart.
                let begun = Instant::now();
                while std::net::TcpListener::bind(target).is_err() {
                    // Another program has got the port.
                    if begun.elapsed() > PATIENCE {
                        return Ok(());
                    }
                }
                shm::listen(Some(target), target.port()).map(|_| ())
            });
            drop(server);
            next.join().unwrap()
        });
        assert!(local_name.is_ok(), "{local_name:?}");
    }
}

/// A process that exits closes its TCP socket before the local one.
#[test]
fn a_local_name_that_is_free_a_moment_later() {
    let device = Soft::open("127.0.0.1 path=shm").unwrap();
    let address = [127, 0, 0, 1].into();
    let is_found = || {
        let taken = std::net::TcpListener::bind((address, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        drop(taken);
        let Ok(local) = shm::listen(Some(SocketAddr::new(address, port)), port) else {
            return false;
        };
        let begins = std::sync::Barrier::new(2);
        let server = std::thread::scope(|s| {
            let server = s.spawn(|| {
                begins.wait();
                Server::on(&device, port.into()).ok()
            });
            begins.wait();
            std::thread::sleep(Duration::from_millis(1));
            drop(local);
            server.join().unwrap()
        });
        let found = shm::connect(SocketAddr::new(address, port));
        server.is_some() && matches!(found, Ok(Some(_)))
    };
    // The thread with the name may get no processor for longer than the other one waits, and another program the
    // port.
    assert!((0..5).any(|_| is_found()));
}

#[test]
fn wide_qualifiers_arrive_exactly() {
    over_all_paths(|net| {
        // Unique per process, so that tests of two builds may run at a time.
        let base = u64::from(std::process::id()) << 40 | 5 << 35;
        let servers: Vec<Server> = (0..20)
            .map(|n| Server::on(&net.passive, base | n).unwrap())
            .collect();
        for (n, server) in servers.iter().enumerate() {
            let a = End::new(&net.active, attr());
            let b = End::new(&net.passive, attr());
            a.connect(base | n as u64, &[n as u8]).unwrap();
            let request = server.next();
            assert_eq!(request.private_data(), [n as u8]);
            net.passive.accept(request, &b.qp, b"yes").unwrap();
            assert_eq!(a.event(), established(b"yes"));
            assert_eq!(b.event(), established(b""));
        }
        let a = End::new(&net.active, attr());
        a.connect(base | 99, b"").unwrap();
        assert_eq!(a.event(), CmEvent::NonPeerRejected);
        a.qp.reset();
        a.connect(base | 7, b"").unwrap();
        net.passive.reject(servers[7].next(), b"no");
        let private_data = b"no"[..].into();
        assert_eq!(a.event(), CmEvent::PeerRejected { private_data });
        assert!(servers.iter().all(|s| s.requests.try_recv().is_err()));
    });
}

#[test]
fn two_queue_pairs_that_want_each_other_crosswise() {
    let net = Net::new("127.0.0.1");
    let (server, qual) = Server::any(&net.passive);
    let a = End::new(&net.passive, attr());
    let b = End::new(&net.passive, attr());
    a.connect(qual, b"a").unwrap();
    b.connect(qual, b"b").unwrap();
    let (first, second) = (server.next(), server.next());
    std::thread::scope(|s| {
        let (a, b, net) = (&a.qp, &b.qp, &net);
        let x = s.spawn(move || net.passive.accept(first, b, b""));
        let y = s.spawn(move || net.passive.accept(second, a, b""));
        // The first of them finds the other still connecting, which is no state to accept in.
        let results = [x.join().unwrap(), y.join().unwrap()];
        assert!(results.contains(&Err(DeviceError::Unsupported)));
    });
    // Both attempts have ended, one way or the other.
    for end in [&a, &b] {
        let ends = [CmEvent::NonPeerRejected, established(b"")];
        assert!(ends.contains(&end.event()));
    }
}

#[test]
fn many_at_once() {
    over_all_paths(|net| {
        let (server, qual) = Server::any(&net.passive);
        let small = QpAttr {
            max_send_wr: 4,
            max_recv_wr: 4,
            ..attr()
        };
        let ends: Vec<(End, End)> = (0..60)
            .map(|_| (End::new(&net.active, small), End::new(&net.passive, small)))
            .collect();
        for (a, _) in &ends {
            a.connect(qual, b"").unwrap();
        }
        for (_, b) in &ends {
            net.passive.accept(server.next(), &b.qp, b"").unwrap();
        }
        for (a, b) in &ends {
            assert_eq!(a.event(), established(b""));
            assert_eq!(b.event(), established(b""));
        }
        for (a, _) in &ends {
            a.post(1, SendOp::Send, &[a.sge(0, 1000)]).unwrap();
        }
        for (_, b) in &ends {
            b.recv(2, &[b.sge(0, 1000)]).unwrap();
            assert_eq!(b.received_as(), (2, WcStatus::Success));
        }
        for (a, _) in &ends {
            assert_eq!(a.sent_as(), (1, WcStatus::Success));
        }
    });
}

/// The end of a connection that was given up since is none of the next one.
#[test]
fn an_end_of_an_earlier_connection() {
    for params in ["", " path=shm", " path=tcp"] {
        let net = Net::new(&format!("127.0.0.1{params}"));
        let (a, b) = net.pair();
        let attempts = (a.qp.attempt(), b.qp.attempt());
        b.qp.disconnect(false);
        assert_eq!(a.event(), CmEvent::Disconnected);
        assert_eq!(b.event(), CmEvent::Disconnected);
        a.qp.reset();
        b.qp.reset();
        net.join(&a, &b);
        for graceful in [true, false] {
            a.qp.disconnect_attempt(attempts.0, graceful);
            b.qp.disconnect_attempt(attempts.1, graceful);
        }
        b.recv(1, &[]).unwrap();
        a.post(2, SendOp::Send, &[]).unwrap();
        assert_eq!(b.received_as(), (1, WcStatus::Success));
        assert_eq!(a.sent_as(), (2, WcStatus::Success));
    }
}
