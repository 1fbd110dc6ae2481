// Timers of several kinds, and a worker thread that hashes its previous hash. Timers and thread repeat the same work
// until SIGUSR2. Then the program prints the results of both.
//
// usage: timers.js
const { Worker, isMainThread, parentPort } = require('worker_threads');
const { createHash } = require('crypto');

const HASHES_COUNT = 200_000;
const HASHES_AT_ONCE = 2_000;
const TICKS_COUNT = 250;
const TIMEOUTS_COUNT = 20;
const TIMEOUT_MS = 30;

function work() {
    let digest = Buffer.from('begin');
    let done = 0;
    const step = () => {
        for (let i = 0; i < HASHES_AT_ONCE; i++) digest = createHash('sha256').update(digest).digest();
        done += HASHES_AT_ONCE;
        if (done === HASHES_COUNT / 2) parentPort.postMessage('half');
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

// Starts the shortest timer first. However long the program pauses between two starts, each timer is due after the
// earlier ones.
const inOrder = () =>
    new Promise((resolve) => {
        const order = [];
        for (let i = 1; i <= TIMEOUTS_COUNT; i++)
            setTimeout(() => order.push(i) === TIMEOUTS_COUNT && resolve(order.join(' ')), i * TIMEOUT_MS);
    });

const worked = (atHalf) =>
    new Promise((resolve) => {
        new Worker(__filename).on('message', (message) => (message === 'half' ? atHalf() : resolve(message)));
    });

async function live() {
    let isTold = false;
    process.on('SIGUSR2', () => (isTold = true));
    const round = async (atHalf) =>
        (await Promise.all([counted(TICKS_COUNT, 2), inOrder(), worked(atHalf)])).join(', ');
    const said = new Set([await round(() => console.log('half'))]);
    while (!isTold) said.add(await round(() => {}));
    console.log(`result ${[...said].join('; ')}\n.`);
    process.exit(0);
}

if (isMainThread) live();
else work();
