import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import type { Sandbox } from 'microsandbox'
import { systemClock } from '../../src/lib/clock.ts'
import { DEMO_IMAGE, loadSdk, type Sdk } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'

// Commands in a sandbox, as the unmodified public SDK runs them.

describe('commands by the SDK', { skip: whyNoServer() }, () => {
  let server: RealServer
  let sdk: Sdk
  let box: Sandbox

  before(async () => {
    server = await startServer()
    sdk = await loadSdk(server)
    box = await sdk.Sandbox.builder('exec').image(DEMO_IMAGE).create()
  })
  after(() => server.close())

  test('output, error output and exit code arrive separately and complete', async () => {
    const output = await box.exec('sh', ['-c', 'echo out; echo err >&2; exit 3'])
    assert.deepEqual([output.stdout(), output.stderr(), output.code, output.success], ['out\n', 'err\n', 3, false])
    assert.equal((await box.exec('true')).success, true)
  })

  test('a command runs in a Linux of its own: user 0, its own host name, its own processes', async () => {
    const output = await box.shell('id -u; hostname; ps -e | wc -l; cat /proc/1/comm')
    const [uid, hostname, processes] = output.stdout().split('\n')
    assert.equal(uid, '0')
    assert.notEqual(hostname, (await import('node:os')).hostname())
    assert.ok(Number(processes) < 20, output.stdout())
  })

  test('four megabytes of every byte value come back unchanged', async () => {
    const output = await box.shell('head -c 4194304 /dev/urandom > /tmp/r; sha256sum < /tmp/r >&2; cat /tmp/r')
    const { createHash } = await import('node:crypto')
    assert.equal(output.stdoutBytes().length, 4_194_304)
    const digest = createHash('sha256').update(output.stdoutBytes()).digest('hex')
    assert.equal(output.stderr().split(' ')[0], digest)
  })

  test('bytes of standard input arrive unchanged, followed by the end of input', async () => {
    const bytes = Buffer.from([0, 255, 10, 13, 0, 128])
    const output = await box.execWith('cat', (options) => options.stdinBytes(bytes))
    assert.deepEqual(Buffer.from(output.stdoutBytes()), bytes)
    const empty = await box.execWith('wc', (options) => options.args(['-c']).stdinBytes(Buffer.alloc(0)))
    assert.equal(empty.stdout().trim(), '0')
  })

  test('a stream of standard input is answered while it is still open', async () => {
    const handle = await box.execStreamWith('cat', (options) => options.stdinPipe())
    const stdin = await handle.takeStdin()
    assert.ok(stdin !== null)
    await stdin.write('first')
    assert.equal(await nextOutput(handle), 'first')
    await stdin.write('second')
    assert.equal(await nextOutput(handle), 'second')
    await stdin.close()
    assert.equal((await handle.wait()).code, 0)
  })

  test('output arrives when it is written, not when the command ends', async () => {
    const handle = await box.shellStream('echo early; sleep 30; echo late')
    const from = systemClock.monotonicMs()
    assert.equal(await nextOutput(handle), 'early\n')
    assert.ok(systemClock.monotonicMs() - from < 20_000, 'it came with the end of the command')
    await handle.kill()
    assert.equal((await handle.wait()).code, -1)
  })

  test('a signal reaches the whole process group, and a handler may answer it', async () => {
    const handle = await box.shellStream('trap "echo caught; exit 7" TERM; echo ready; while :; do sleep 0.05; done')
    assert.equal(await nextOutput(handle), 'ready\n')
    await handle.signal(15)
    const output = await handle.collect()
    assert.deepEqual([output.stdout(), output.code], ['caught\n', 7])
    const pair = await box.shellStream('sleep 987 & echo started; wait')
    assert.equal(await nextOutput(pair), 'started\n')
    await pair.kill()
    await pair.wait()
    assert.equal((await box.shell('pgrep -f "sleep 987" -x')).stdout(), '')
  })

  test('a command that outlives its time limit is killed and reported as such', async () => {
    await assert.rejects(
      box.execWith('sleep', (options) => options.arg('60').timeout(300)),
      sdk.ExecTimeoutError,
    )
    assert.equal((await box.shell('pgrep -x sleep | wc -l')).stdout(), '0\n')
  })

  test('environment, working folder and user of one command are its own', async () => {
    const output = await box.execWith('sh', (options) =>
      options.args(['-c', 'echo $A; pwd; id -u; id -g']).env('A', 'b c').cwd('/var').user('1234:4321'),
    )
    assert.equal(output.stdout(), 'b c\n/var\n1234\n4321\n')
  })

  test('a limit of one command applies to that command alone', async () => {
    const output = await box.execWith('sh', (options) => options.args(['-c', 'ulimit -n']).rlimit('nofile', 77))
    assert.equal(output.stdout(), '77\n')
    assert.notEqual((await box.shell('ulimit -n')).stdout(), '77\n')
  })

  test('a missing program, a missing folder and a file that is not executable give different errors', async () => {
    await assert.rejects(box.exec('no-such-program'), /ExecFailed.*no-such-program/s)
    await assert.rejects(
      box.execWith('true', (options) => options.cwd('/no/such/folder')),
      /ExecFailed.*\/no\/such\/folder/s,
    )
    await assert.rejects(box.exec('/etc/passwd'), /ExecFailed.*passwd/s)
    await assert.rejects(
      box.execWith('true', (options) => options.user('nobody-of-this-name')),
      /ExecFailed.*nobody-of-this-name/s,
    )
  })

  test('a terminal has the size of the last resize, and a command can tell that it has a terminal', async () => {
    const handle = await box.execStreamWith('sh', (options) =>
      options
        .args(['-c', 'test -t 0 && echo tty; trap "stty size; exit 5" WINCH; echo ready; while :; do sleep 0.05; done'])
        .tty(true),
    )
    await outputUntil(handle, /tty\r?\nready/)
    await handle.resize(33, 121)
    assert.match(await outputUntil(handle, /\d+ \d+/), /33 121/)
    assert.equal((await handle.wait()).code, 5)
  })

  test('a terminal echoes its input, and Ctrl-C interrupts the command', async () => {
    const handle = await box.execStreamWith('sh', (options) => options.args(['-i']).tty(true).stdinPipe())
    const stdin = await handle.takeStdin()
    assert.ok(stdin !== null)
    await stdin.write('echo $((6*7))\n')
    await outputUntil(handle, /42/)
    await stdin.write('sleep 60; echo not-$?\n')
    // The shell may lose Ctrl-C that it gets before its command runs.
    while (!(await box.exec('pgrep', ['-x', 'sleep'])).success);
    const from = systemClock.monotonicMs()
    await stdin.write('\u0003')
    await stdin.write('echo after-$((1+1))\n')
    await outputUntil(handle, /after-2/)
    assert.ok(systemClock.monotonicMs() - from < 20_000, 'the sleep of 60 s ran on')
    await stdin.write('exit 4\n')
    assert.equal((await handle.wait()).code, 4)
  })

  test('eight concurrent streams each receive their own output', async () => {
    const handles = await Promise.all(
      Array.from({ length: 8 }, (_, index) => box.shellStream(`sleep 0.1; echo number ${String(index)}`)),
    )
    const outputs = await Promise.all(handles.map((handle) => handle.collect()))
    assert.deepEqual(
      outputs.map((output) => output.stdout()),
      handles.map((_, index) => `number ${String(index)}\n`),
    )
  })

  test('a background process of an ended command lives on until the sandbox stops', async () => {
    await box.shell('sleep 4321 > /dev/null 2>&1 < /dev/null & echo $!')
    assert.equal((await box.shell('pgrep -cf "^sleep 4321"')).stdout(), '1\n')
    await box.shell('pkill -f "^sleep 4321"')
  })
})

type Stream = Awaited<ReturnType<Sandbox['execStream']>>

/** Resolves with the next piece of output. */
async function nextOutput(handle: Stream): Promise<string> {
  for (;;) {
    const event = await handle.recv()
    assert.ok(event !== null && event.kind !== 'exited', 'the command ended')
    if (event.kind === 'stdout') return Buffer.from(event.data).toString()
  }
}

/** Reads output until it matches a pattern. Resolves with all of it. */
async function outputUntil(handle: Stream, pattern: RegExp): Promise<string> {
  let seen = ''
  while (!pattern.test(seen)) seen += await nextOutput(handle)
  return seen
}
