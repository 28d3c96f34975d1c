import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { runMsb, startMsbInTerminal } from '../support/msb.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'

// The unmodified public command line client `msb`, in a terminal and from scripts.

describe('the msb command', { skip: whyNoServer() }, () => {
  let server: RealServer

  before(async () => {
    server = await startServer()
  })
  after(() => server.close())

  /** Runs `msb`, asserts that it succeeds, and returns its output. */
  async function printed(...args: readonly string[]): Promise<string> {
    const { code, stdout, stderr } = await runMsb(server, args)
    assert.equal(code, 0, `msb ${args.join(' ')}: ${stderr}`)
    return stdout
  }

  /** The row of `msb ls` or `msb ps -a` that begins with a name. Empty when no row does. */
  async function rowOf(name: string): Promise<string> {
    return (await printed('ls')).split('\n').find((line) => line.split(/\s+/)[0] === name) ?? ''
  }

  async function waitForRow(name: string, pattern: RegExp): Promise<void> {
    const deadlineMs = systemClock.monotonicMs() + 10_000
    for (let row = await rowOf(name); !pattern.test(row); row = await rowOf(name)) {
      assert.ok(systemClock.monotonicMs() < deadlineMs, `${name} is ${JSON.stringify(row)}, not ${String(pattern)}`)
    }
  }

  test('run prints the output of the command, exits with its code, and leaves no sandbox', async () => {
    const result = await runMsb(server, ['run', DEMO_IMAGE, '--', 'sh', '-c', 'echo out; echo err >&2; exit 41'])
    assert.deepEqual([result.code, result.stdout, result.stderr], [41, 'out\n', 'err\n'])
    const deadlineMs = systemClock.monotonicMs() + 10_000
    while (/msb-/.test(await printed('ls'))) assert.ok(systemClock.monotonicMs() < deadlineMs, 'a sandbox is left')
  })

  test('run --name keeps its sandbox, and the next run of that name finds its files', async () => {
    await printed('run', '--name', 'named', DEMO_IMAGE, '--', 'sh', '-c', 'echo first > /root/file')
    assert.equal(await printed('run', '--name', 'named', DEMO_IMAGE, '--', 'cat', '/root/file'), 'first\n')
    assert.match(await rowOf('named'), /running|stopped/)
    await printed('rm', '--force', 'named')
  })

  test('the status shows how a detached workload ended: stopped if it succeeded, crashed if it failed', async () => {
    await printed('run', '-d', '--name', 'well', DEMO_IMAGE, '--', 'sh', '-c', 'sleep 0.5')
    await printed('run', '-d', '--name', 'badly', DEMO_IMAGE, '--', 'sh', '-c', 'sleep 0.5; exit 3')
    await Promise.all([waitForRow('well', /stopped/i), waitForRow('badly', /crashed|failed/i)])
    await printed('rm', 'well', 'badly')
  })

  test('create, ls, ps, inspect, exec, stop, start, restart and rm work on one sandbox in turn', async () => {
    await printed('create', '--name', 'life', '--label', 'tier=test', '--cpus', '1', '--memory', '256M', DEMO_IMAGE)
    assert.match(await rowOf('life'), /running/)
    assert.match(await printed('ps'), /life/)
    assert.match(await printed('inspect', 'life'), /life/)
    assert.equal(await printed('exec', 'life', '--', 'sh', '-c', 'echo kept > /root/file; echo done'), 'done\n')
    await printed('stop', 'life')
    assert.match(await rowOf('life'), /stopped/)
    assert.doesNotMatch(await printed('ps'), /life/)
    await printed('start', 'life')
    assert.equal(await printed('exec', 'life', '--', 'cat', '/root/file'), 'kept\n')
    await printed('restart', 'life')
    assert.equal(await printed('exec', 'life', '--', 'cat', '/root/file'), 'kept\n')
    await printed('rm', 'life')
    assert.equal(await rowOf('life'), '')
  })

  test('exec starts a stopped sandbox first', async () => {
    await printed('create', '--name', 'asleep', DEMO_IMAGE)
    await printed('exec', 'asleep', '--', 'sh', '-c', 'echo slept > /root/file')
    await printed('stop', 'asleep')
    assert.equal(await printed('exec', 'asleep', '--', 'cat', '/root/file'), 'slept\n')
    assert.match(await rowOf('asleep'), /running/)
    await printed('rm', 'asleep')
  })

  test('exec passes environment, folder, user, input and exit code on', async () => {
    await printed('create', '--name', 'passing', DEMO_IMAGE)
    const options = ['--env', 'A=1 2', '--workdir', '/var', '--user', '7:8']
    const said = await printed('exec', ...options, 'passing', '--', 'sh', '-c', 'echo "$A"; pwd; id -u; id -g')
    assert.equal(said, '1 2\n/var\n7\n8\n')
    const input = Buffer.alloc(3_000_000, 'x')
    const counted = await runMsb(server, ['exec', 'passing', '--', 'wc', '-c'], { input })
    assert.equal(counted.stdout.trim(), '3000000')
    assert.equal((await runMsb(server, ['exec', 'passing', '--', 'sh', '-c', 'exit 77'])).code, 77)
    const missing = await runMsb(server, ['exec', 'passing', '--', 'no-such-program'])
    assert.equal(missing.code, 127)
    assert.match(missing.stderr, /no-such-program/)
    await printed('rm', 'passing')
  })

  test('a shell in a terminal echoes, follows its size, and ends with its own exit code', async () => {
    await printed('create', '--name', 'tty', DEMO_IMAGE)
    const shell = startMsbInTerminal(server, ['exec', 'tty', '--', 'bash', '--norc', '-i'])
    shell.write('stty size; tty\n')
    await shell.shown(/24 80\r\n\/dev\/pts\/\d+/)
    shell.resize(40, 132)
    shell.write('sleep 0.3; stty size; echo $((40+2))-$TERM\n')
    await shell.shown(/40 132\r\n42-xterm/)
    shell.write('exit 5\n')
    assert.equal(await shell.ended(), 5)
    await printed('rm', 'tty')
  })

  test('run without a command in a terminal opens a shell in a new sandbox', async () => {
    const shell = startMsbInTerminal(server, ['run', DEMO_IMAGE])
    await shell.shown(/# $/)
    shell.write('echo $((6*7)); exit 6\n')
    await shell.shown(/\n42\r\n/)
    assert.equal(await shell.ended(), 6)
  })

  test('ls, stop and rm by label affect the sandboxes with that label and no others', async () => {
    await Promise.all([
      printed('create', '--name', 'blue', '--label', 'team=blue', DEMO_IMAGE),
      printed('create', '--name', 'red', '--label', 'team=red', DEMO_IMAGE),
    ])
    const listed = await printed('ls', '--label', 'team=blue')
    assert.match(listed, /blue/)
    assert.doesNotMatch(listed, /\bred\b/)
    await printed('stop', '--label', 'team=blue')
    assert.match(await rowOf('red'), /running/)
    await printed('rm', '--label', 'team=blue')
    assert.equal(await rowOf('blue'), '')
    await printed('rm', 'red')
  })

  test('the user sees the reason of a refusal', async () => {
    const refusals = [
      [['create', '--name', 'no-image', 'localhost/not-made'], /localhost\/not-made/],
      [
        ['create', '--name', 'no-vm', '--label', 'sandyard.isolation=microvm', DEMO_IMAGE],
        /labels\.sandyard\.isolation/,
      ],
      [['exec', 'not-there', '--', 'true'], /not found/],
      [['rm', 'not-there'], /not found/],
      [['create', '--name', 'bad name', DEMO_IMAGE], /name/],
    ] as const
    for (const [args, reason] of refusals) {
      const { code, stderr } = await runMsb(server, args)
      assert.equal(code, 1, args.join(' '))
      assert.match(stderr, reason)
    }
    const stranger = await runMsb(server, ['ls'], { env: { MSB_API_KEY: 'not-a-key-of-this-server' } })
    assert.equal(stranger.code, 1)
    assert.match(stranger.stderr, /401.*unauthorized/)
    await printed('rm', 'no-image')
  })
})
