import assert from 'node:assert/strict'
import { existsSync, mkdtempSync, readFileSync, realpathSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { after, test } from 'node:test'
import { makeLog } from '../../../src/lib/log.ts'
import { CommandError } from '../../../src/lib/run-command.ts'
import { makeCommandHelper } from '../../../src/worker/processes/command-helper.ts'
import { waitUntil } from '../../support/wait.ts'

// A command has the same result whether the helper process or Node itself runs it.

const helper = makeCommandHelper(makeLog('silent'))
const { run, attempt } = helper.commands
const folder = realpathSync(mkdtempSync(`${tmpdir()}/sandyard-commands-`))
const LIMIT = { timeoutMs: 10_000 }
after(() => {
  helper.close()
  rmSync(folder, { recursive: true })
})

test('the input, output and exit code of a command arrive completely, whatever the bytes', async () => {
  const script = 'cat; printf "a b\\n\\377" >&2; pwd; exit 7'
  assert.deepEqual(await attempt('sh', ['-c', script], { ...LIMIT, input: 'in\nput ü\n', cwd: folder }), {
    code: 7,
    stdout: `in\nput ü\n${folder}\n`,
    stderr: 'a b\n\uFFFD',
  })
  const { stdout } = await run('sh', ['-c', 'head -c 300000 /dev/zero | tr "\\0" x'], LIMIT)
  assert.equal(stdout, 'x'.repeat(300_000))
  const words = ['', ' ', "it's", '"', 'ü', '\n', '\\']
  assert.deepEqual((await run('printf', ['[%s]', ...words], LIMIT)).stdout, words.map((word) => `[${word}]`).join(''))
})

test('a command that reads no input and a command that reads much input both end without a delay', async () => {
  assert.equal((await attempt('true', [], { ...LIMIT, input: 'x'.repeat(50_000) })).code, 0)
  assert.equal((await run('wc', ['-c'], { ...LIMIT, input: 'x'.repeat(500_000) })).stdout.trim(), '500000')
})

test('at the limit of open files commands fail with a message, and work again below it', async () => {
  const script = `
    import { closeSync, openSync } from 'node:fs'
    import { makeLog } from './src/lib/log.ts'
    import { makeCommandHelper } from './src/worker/processes/command-helper.ts'
    const { commands, close } = makeCommandHelper(makeLog('silent'))
    const open = []
    try { for (;;) open.push(openSync('/dev/null')) } catch (error) { console.log(error.code) }
    await commands.attempt('true', [], { timeoutMs: 5_000 }).catch((error) => console.log(error.constructor.name))
    await commands.callSystem(['fifos', '/nowhere/fifo']).catch((error) => console.log(error.constructor.name))
    for (const one of open) closeSync(one)
    console.log((await commands.attempt('true', [], { timeoutMs: 5_000 })).code)
    close()`
  const inShell = `ulimit -n 64; exec "$0" --input-type=module-typescript -e "$1"`
  const { stdout } = await run('sh', ['-c', inShell, process.execPath, script], { ...LIMIT, cwd: process.cwd() })
  assert.deepEqual(stdout.trim().split('\n'), ['EMFILE', 'CommandError', 'CommandError', '0'])
})

test('a missing command or folder fails with a message, and other commands go on', async () => {
  await assert.rejects(run('no-such-command', [], LIMIT), (error) => {
    return error instanceof CommandError && String(error.cause).includes('No such file')
  })
  await assert.rejects(run('true', [], { ...LIMIT, cwd: '/no/such/folder' }), CommandError)
  await assert.rejects(run('false', [], LIMIT), /false: exit 1/)
  assert.equal((await run('echo', ['on'], LIMIT)).stdout, 'on\n')
})

test('of many commands at once, each gets its own result', async () => {
  const numbers = Array.from({ length: 60 }, (_, n) => n)
  const results = await Promise.all(
    numbers.map((n) => attempt('sh', ['-c', `sleep 0.0${String(n % 7)}; echo ${String(n)}; exit ${String(n)}`], LIMIT)),
  )
  assert.deepEqual(
    results.map(({ code, stdout }) => [code, stdout]),
    numbers.map((n) => [n, `${String(n)}\n`]),
  )
})

test('the late result of a closed helper process does not reach callers of the next one', async () => {
  const brief = makeCommandHelper(makeLog('silent'))
  const untold = brief.commands.attempt('sleep', ['0.2'], LIMIT)
  brief.close()
  const told = brief.commands.attempt('sh', ['-c', 'sleep 0.5; echo told'], LIMIT)
  const [, { stdout }] = await Promise.all([untold.catch((error: unknown) => error), told])
  assert.equal(stdout, 'told\n')
  brief.close()
})

test('a command that takes too long is killed with everything that it started', async () => {
  const { code, stdout } = await attempt('sh', ['-c', 'sleep 1000 & echo $!; wait'], { timeoutMs: 300 })
  assert.equal(code, null)
  await waitUntil(() => commandLineOf(stdout.trim()) === '')
})

test('a command whose time limit passes before the helper has reported its start is killed too', async () => {
  const fresh = makeCommandHelper(makeLog('silent')) // starting the helper takes longer than this command may take
  assert.equal((await fresh.commands.attempt('sleep', ['1000.25'], { timeoutMs: 1 })).code, null)
  fresh.close()
})

test('a NUL never splits a word in two', async () => {
  await assert.rejects(run('echo', ['one\0two'], LIMIT), /null bytes/)
  assert.equal((await run('cat', [], { ...LIMIT, input: 'a\0echo\0b' })).stdout, 'a\0echo\0b')
})

test('at most 4 MiB of a command’s output are kept', async () => {
  const { stdout } = await run('head', ['-c', '5000000', '/dev/zero'], LIMIT)
  assert.equal(stdout.length, 4 * 1024 * 1024)
})

/** The command line of a process. Empty once the process has ended, reaped or not. */
function commandLineOf(pid: string): string {
  const path = `/proc/${pid}/cmdline`
  return existsSync(path) ? readFileSync(path, 'utf8') : ''
}

test('commands inherit no descriptors and no signal mask of the worker', async () => {
  const { stdout } = await run('sh', ['-c', 'ls /proc/self/fd; grep SigBlk /proc/self/status'], LIMIT)
  assert.match(stdout, /^0\n1\n2\n3\nSigBlk:\s0000000000000000\n$/)
})

test('when the helper is killed its commands fail, and the next command starts a new one', async () => {
  const { stdout: parent } = await run('sh', ['-c', 'echo $PPID'], LIMIT)
  const long = run('sleep', ['1000.125'], LIMIT)
  process.kill(Number(parent), 'SIGKILL')
  await assert.rejects(long, /could not be run/)
  assert.equal((await run('echo', ['again'], LIMIT)).stdout, 'again\n')
  await attempt('pkill', ['-x', '-f', 'sleep 1000.125'], LIMIT)
})
