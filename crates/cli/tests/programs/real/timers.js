// Timers of several kinds, and a worker thread that hashes what it has hashed; both say at their end what came of it.
//
// usage: timers.js
const { Worker, isMainThread, parentPort } = require('worker_threads');
const { createHash } = require('crypto');

const HASHES_COUNT = 400_000;
const HASHES_AT_ONCE = 2_000;
const TICKS_COUNT = 500;
const TIMEOUTS_COUNT = 20;
const TIMEOUT_MS = 60;

function work() {
    let digest = Buffer.from('begin');
    let done = 0;
    const step = () => {
        for (let i = 0; i < HASHES_AT_ONCE; i++) digest = createHash('sha256').update(digest).digest();
        done += HASHES_AT_ONCE;
        if (done === HASHES_COUNT / 4) parentPort.postMessage('half');
        if (done < HASHES_COUNT) setImmediate(step);
        else parentPort.postMessage(digest.toString('hex'));
    };
    step();
}

const counted = (count, interval) =>
    new Promise((resolve) => {
        let ticks = 0;
        const timer = setInterval(() => {
            if (++ticks < count) return;
            clearInterval(timer);
            resolve(ticks);
        }, interval);
    });

const inOrder = () =>
    new Promise((resolve) => {
        const order = [];
        for (let i = TIMEOUTS_COUNT; i > 0; i--)
            setTimeout(() => order.push(i) === TIMEOUTS_COUNT && resolve(order.join(' ')), i * TIMEOUT_MS);
    });

const worked = () =>
    new Promise((resolve) => {
        new Worker(__filename).on('message', (message) => (message === 'half' ? console.log(message) : resolve(message)));
    });

if (isMainThread)
    Promise.all([counted(TICKS_COUNT, 2), inOrder(), worked()]).then((said) => console.log(`result ${said.join(', ')}\n.`));
else work();
