import assert from 'node:assert/strict'
import { execFileSync, spawnSync, type SpawnSyncReturns } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { makeLog } from '../../../../src/lib/log.ts'
import { makeLauncher, type Launcher } from '../../../../src/worker/drivers/oci/run/runtime/launcher.ts'
import { isAlive } from '../../../support/local-guest.ts'
import { waitUntil } from '../../../support/wait.ts'

let folder: string
let launcher: Launcher
let files = 0

before(() => {
  folder = mkdtempSync(join(tmpdir(), 'sandyard-launcher-'))
  launcher = makeLauncher(makeLog('silent'))
})
after(() => {
  launcher.close()
  rmSync(folder, { recursive: true })
})

/** Makes files for standard streams, one of which gets both output and error. `said` reads that file. */
function makeStreams(input = ''): { readonly streams: [string, string, string]; readonly said: () => string } {
  const base = join(folder, String(files++))
  writeFileSync(`${base}.in`, input)
  writeFileSync(`${base}.out`, '')
  return { streams: [`${base}.in`, `${base}.out`, `${base}.out`], said: () => readFileSync(`${base}.out`, 'utf8') }
}

test('a program gets its streams and its arguments byte by byte, and its exit code is reported', async () => {
  const { streams, said } = makeStreams('input')
  const odd = ['', ' a  b ', 'ünï\n', '$HOME', '"']
  const { ended } = await launcher.start(['sh', '-c', 'cat; printf "[%s]" "$@"; exit 7', 'sh', ...odd], streams)
  assert.deepEqual(await ended, { code: 7 })
  assert.equal(said(), `input${odd.map((text) => `[${text}]`).join('')}`)
})

test('a program leads its own session, and blocks and ignores no signal', async () => {
  const { streams, said } = makeStreams()
  const script = 'cut -d" " -f1,5,6 /proc/$$/stat; grep -E "SigBlk|SigIgn" /proc/self/status'
  const { pid, ended } = await launcher.start(['sh', '-c', script], streams)
  await ended
  const [numbers = '', ...masks] = said().trim().split('\n')
  assert.deepEqual(numbers.split(' ').map(Number), [pid, pid, pid])
  assert.deepEqual(
    masks.map((mask) => Number(mask.split('\t')[1])),
    [0, 0],
  )
})

test('a program that a signal ends has no exit code, and counts as running until then', async () => {
  const launched = await launcher.start(['sleep', '100'], makeStreams().streams)
  assert.equal(launched.isRunning(), true)
  process.kill(launched.pid, 'SIGKILL')
  assert.deepEqual(await launched.ended, { code: null })
  assert.equal(launched.isRunning(), false)
})

test('a program that can’t be started is refused with the system’s message', async () => {
  const { streams } = makeStreams()
  await assert.rejects(launcher.start(['no-such-program'], streams), /no-such-program: No such file or directory/)
  await assert.rejects(launcher.start([folder], streams), /Permission denied/)
  await assert.rejects(launcher.start(['true'], ['/none/a', '/dev/null', '/dev/null']), /\/none\/a: No such file/)
})

test('hundreds of programs start and end at once, each with its own code', async () => {
  const { streams } = makeStreams()
  const codes = Array.from({ length: 300 }, (_, index) => index % 200)
  const launched = await Promise.all(codes.map((code) => launcher.start(['sh', '-c', `exit ${String(code)}`], streams)))
  assert.deepEqual(await Promise.all(launched.map(({ ended }) => ended)), codes.map((code) => ({ code }))) // prettier-ignore
})

test('when the launcher process is killed, its programs are reported as ended, and the next program gets a new one', async () => {
  const { streams, said } = makeStreams()
  const parent = await launcher.start(['sh', '-c', 'echo $PPID; sleep 100'], streams)
  await waitUntil(() => said() !== '')
  process.kill(Number(said()), 'SIGKILL')
  assert.deepEqual(await parent.ended, { code: null })
  assert.ok(isAlive(parent.pid))
  process.kill(-parent.pid, 'SIGKILL')
  const next = await launcher.start(['true'], makeStreams().streams)
  assert.deepEqual(await next.ended, { code: 0 })
})

/** Starts a program that runs `script` in the background, leaves it, and exits. A shell would sometimes reap it. */
function startDetaching(script: string, exits = 0): ReturnType<Launcher['start']> {
  const { streams } = makeStreams()
  const pidFile = `${streams[0]}.pid`
  const leave = 'my $pid = fork; exec "sh", "-c", $ARGV[0] if !$pid; open F, ">", $ARGV[1]; print F $pid; exit $ARGV[2]'
  const command = ['perl', '-e', leave, script, pidFile, String(exits)]
  return launcher.start(command, streams, { pidFile })
}

test('a process that a program leaves is waited for, and its exit is reported', async () => {
  const started = await startDetaching('sleep 0.2; exit 9')
  const left = await started.left
  assert.ok(left !== null && left.pid !== started.pid && isAlive(left.pid))
  assert.equal(left.innerPid, left.pid) // it is in the same namespace
  assert.equal(started.isRunning(), true)
  assert.deepEqual(await started.ended, { code: 9 })
  assert.equal(started.isRunning(), false)

  const killed = await startDetaching('sleep 100')
  process.kill((await killed.left)?.pid ?? 0, 'SIGKILL')
  assert.deepEqual(await killed.ended, { code: null })
})

test('a program that fails, or that only ends, leaves no process', async () => {
  const failed = await startDetaching('true', 3)
  assert.deepEqual([await failed.left, await failed.ended], [null, { code: 3 }])
  const plain = await launcher.start(['sh', '-c', 'exit 4'], makeStreams().streams)
  assert.deepEqual([await plain.left, await plain.ended], [null, { code: 4 }])
})

test('hundreds of processes that end at once after their programs have left them each report their ids and code', async () => {
  const codes = Array.from({ length: 200 }, (_, index) => index)
  const started = await Promise.all(codes.map((code) => startDetaching(`exit ${String(code)}`)))
  assert.deepEqual(await Promise.all(started.map(({ ended }) => ended)), codes.map((code) => ({ code }))) // prettier-ignore
  for (const { left } of started) assert.equal((await left)?.innerPid, (await left)?.pid)
})

test('a program that a dying worker requested is not started', async () => {
  const script = join(import.meta.dirname, '../../../../src/worker/perl/launcher.pl')
  const mark = join(folder, 'started')
  const command = ['', '/dev/null', '/dev/null', '/dev/null', 'touch', mark].map((field) => `${field}\0`).join('')
  const request = Buffer.concat([
    Buffer.from([0, 0, 0, 7 + command.length, 0, 0, 0, 1, 0x70, 3, 0]),
    Buffer.from(command),
  ])
  const run = (worker: number): SpawnSyncReturns<Buffer> =>
    spawnSync('perl', [script, String(worker)], { input: request })
  assert.equal(run(process.pid + 1).stdout.toString(), '')
  assert.equal(existsSync(mark), false)
  assert.match(run(process.pid).stdout.toString(), /^started 1 \d+\n/)
  await waitUntil(() => existsSync(mark))
})

test('a program whose stream files can’t be opened fails, and other programs start', async () => {
  const fifo = join(folder, 'fifo')
  execFileSync('mkfifo', [fifo])
  const launched = await launcher.start(['true'], [fifo, '/dev/null', '/dev/null'])
  assert.deepEqual(await launched.ended, { code: null })
  const next = await launcher.start(['true'], makeStreams().streams)
  assert.deepEqual(await next.ended, { code: 0 })
})

test('programs go on when the launcher is closed', async () => {
  const closing = makeLauncher(makeLog('silent'))
  const { streams, said } = makeStreams()
  const { pid } = await closing.start(['sh', '-c', 'echo up; sleep 100'], streams)
  await waitUntil(() => said() === 'up\n')
  closing.close()
  const own = await launcher.start(['true'], makeStreams().streams)
  await own.ended
  assert.ok(isAlive(pid))
  process.kill(-pid, 'SIGKILL')
})
