import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { after, before, describe, test } from 'node:test'
import { runCommand } from '../../src/lib/run-command.ts'
import { call, mustCall } from '../support/api.ts'
import { runMsb } from '../support/msb.ts'
import { childrenOf, isRunning, readCommandLine, sendSignal } from '../support/process-tree.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// The worker of `up` is a process of its own. Whatever happens to it, the API answers and the sandboxes live on.

const LIMIT_MS = 60_000
const METRICS_KEY = 'the-key-of-the-metrics-of-this-test'
/** A process in the sandbox, and when it began. Both change if the sandbox is started anew. */
const LOOK = 'pgrep -f "^sleep 86421"; cut -d" " -f22 /proc/1/stat'

describe('the worker of `up`', { skip: whyNoServer() }, () => {
  let server: RealServer
  let seen = ''

  before(async () => {
    server = await startServer({ SANDYARD_METRICS_KEY: METRICS_KEY })
    const create = { query: { start: 'true', wait_for: 'running' }, body: { name: 'kept', image: DEMO_IMAGE } }
    await mustCall(server, 'create_sandbox', create)
    await inside('setsid sleep 86421 > /dev/null 2>&1 < /dev/null &')
    seen = await inside(LOOK)
    assert.match(seen, /^\d+\n\d+\n$/)
  })
  after(() => server.close())

  async function inside(script: string): Promise<string> {
    const { code, stdout, stderr } = await runMsb(server, ['exec', 'kept', '--', 'sh', '-c', script])
    return code === 0 ? stdout : `exit ${String(code)}: ${stderr}`
  }

  /** The process of the worker, once there is one. */
  const workerPid = (): Promise<number> =>
    waitUntil(() => childrenOf(server.pid()).find((pid) => readCommandLine(pid).startsWith('sandyard: worker')))

  async function assertApiAnswers(): Promise<void> {
    assert.equal((await call(server, 'get_readiness')).status, 200)
    const { status } = await mustCall(server, 'get_sandbox_by_name', { params: { name: 'kept' } })
    assert.equal(status, 'running')
  }

  const limitDescriptors = (pid: number, most: string): Promise<unknown> =>
    runCommand('prlimit', ['--pid', String(pid), `--nofile=${most}:`], { timeoutMs: 10_000 })

  const untilCommandsRun = (): Promise<unknown> =>
    waitUntil(
      async () => (await inside('echo answers')) === 'answers\n',
      LIMIT_MS,
      () => server.output().slice(-2000),
    )

  test('its command line and its environment contain no secret', async () => {
    const pid = await workerPid()
    for (const file of ['cmdline', 'environ']) {
      const text = readFileSync(`/proc/${String(pid)}/${file}`, 'utf8')
      for (const secret of [server.key, METRICS_KEY, 'SANDYARD_', 'postgres']) assert.ok(!text.includes(secret), text)
    }
  })

  test('after kill -9 of it, another process takes over its sandbox, and the API answers meanwhile', async () => {
    const killed = await workerPid()
    sendSignal(killed, 'SIGKILL')
    await waitUntil(() => !isRunning(killed))
    await assertApiAnswers()
    await untilCommandsRun()
    assert.notEqual(await workerPid(), killed)
    assert.equal(await inside(LOOK), seen)
    await assertApiAnswers()
  })

  test('`/metrics` shows the metrics of both processes', async () => {
    const reply = await waitUntil(async () => {
      const headers = { authorization: `Bearer ${METRICS_KEY}` }
      const text = await (await fetch(`${server.url}/metrics`, { headers })).text()
      return /^sandyard_machine_runs\{phase="running"\} 1$/m.test(text) ? text : undefined
    }, LIMIT_MS)
    assert.match(reply, /^sandyard_ready 1$/m)
  })

  test('while it has no descriptor left, the API answers; afterwards commands run in its sandbox as before', async () => {
    const pid = await workerPid()
    const before = /^Max open files +(\d+)/m.exec(readFileSync(`/proc/${String(pid)}/limits`, 'utf8'))?.[1] ?? ''
    const from = server.output().length
    await limitDescriptors(pid, '3') // each new descriptor fails from now on; open ones stay
    await mustCall(server, 'create_sandbox', { query: { start: 'true' }, body: { name: 'late', image: DEMO_IMAGE } })
    await waitUntil(
      async () => {
        await inside('true') // it may fail
        await assertApiAnswers()
        return /EMFILE|no file descriptors left/.test(server.output().slice(from))
      },
      LIMIT_MS,
      () => server.output().slice(from),
    )
    await assertApiAnswers()
    if (isRunning(pid)) await limitDescriptors(pid, before)
    await untilCommandsRun()
    assert.equal(await inside(LOOK), seen)
    await waitUntil(async () => {
      const { status } = await mustCall(server, 'get_sandbox_by_name', { params: { name: 'late' } })
      return status === 'running' || status === 'failed'
    }, LIMIT_MS)
  })

  test('when `up` is killed with -9, its worker ends too, and the next one takes over', async () => {
    const worker = await workerPid()
    sendSignal(worker, 'SIGSTOP') // it can do nothing for its end
    await server.kill9()
    await waitUntil(() => !isRunning(worker))
    await server.start()
    assert.equal(await inside(LOOK), seen)
  })
})
