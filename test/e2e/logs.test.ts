import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import type { LogEntry } from 'microsandbox'
import { mustCall } from '../support/api.ts'
import { readLog } from '../support/events.ts'
import { runMsb, startMsbInTerminal } from '../support/msb.ts'
import { DEMO_IMAGE, loadSdk, type Sdk } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// The unmodified public SDK and `msb` read and follow the logs of sandboxes.

/** A script that writes lines to both outputs, with pauses that preserve their order, and then stays silent. */
const TALK = 'for n in 1 2 3; do echo "out $n"; sleep 0.1; echo "err $n" >&2; sleep 0.1; done; exec sleep 600'
const SAID = ['stdout out 1', 'stderr err 1', 'stdout out 2', 'stderr err 2', 'stdout out 3', 'stderr err 3']

describe('logs', { skip: whyNoServer() }, () => {
  let server: RealServer
  let sdk: Sdk

  before(async () => {
    server = await startServer()
    sdk = await loadSdk(server)
  })
  after(() => server.close())

  /** Starts a sandbox whose workload is a script. */
  async function run(name: string, script: string): Promise<string> {
    const { code, stderr } = await runMsb(server, ['run', '-d', '--name', name, DEMO_IMAGE, '--', 'sh', '-c', script])
    assert.equal(code, 0, stderr)
    return (await mustCall(server, 'get_sandbox_by_name', { params: { name } })).id
  }

  const logsOf = (id: string, query: string) => readLog(`${server.url}/v1/sandboxes/${id}/logs?${query}`, server.key)

  /** Resolves once the log of a sandbox has a line. */
  async function untilSaid(id: string, line: string): Promise<void> {
    await waitUntil(async () => (await logsOf(id, 'follow=false')).lines.some(({ text }) => text === line), 30_000)
  }

  /** Reads log entries through the SDK until the stream ends or enough have arrived. */
  async function followBySdk(name: string, fromCursor?: string, enough = Infinity): Promise<readonly LogEntry[]> {
    const handle = await sdk.Sandbox.get(name)
    await using stream = await handle.logStream({ follow: true, ...(fromCursor === undefined ? {} : { fromCursor }) })
    const seen: LogEntry[] = []
    for await (const entry of stream) {
      seen.push(entry)
      if (seen.length >= enough) break
    }
    return seen
  }

  const shown = (entries: readonly LogEntry[]): readonly string[] =>
    entries.map((entry) => `${entry.source} ${entry.text().trimEnd()}`)

  test('the SDK follows a log line by line, gets the source of each line, and resumes after any cursor', async () => {
    const id = await run('talks', TALK)
    const all = await followBySdk('talks', undefined, SAID.length)
    assert.deepEqual(shown(all), SAID)
    assert.ok(all.every(({ timestamp }) => timestamp.getTime() > 0))
    for (const [at, { cursor }] of all.entries()) {
      const rest = SAID.slice(at + 1)
      if (rest.length > 0) assert.deepEqual(shown(await followBySdk('talks', cursor, rest.length)), rest)
    }
    const last = followBySdk('talks', all.at(-1)?.cursor)
    await mustCall(server, 'stop_sandbox', { params: { sandbox_id: id } })
    assert.deepEqual(await last, [])
  })

  test('msb logs -f prints new lines and exits with 0: at once when its sandbox ends, or after a while without new lines', async () => {
    const [ends] = await Promise.all([run('ends', TALK), run('idles', TALK)])
    const ended: string[] = []
    const follow = async (name: string): Promise<string> => {
      const { code, stdout, stderr } = await runMsb(server, ['logs', '-f', name])
      assert.equal(code, 0, `${name}: ${stderr}`)
      ended.push(name)
      return stdout
    }
    await untilSaid(ends, 'err 3\n')
    const both = [follow('ends'), follow('idles')]
    await waitUntil(() => openStreams(server).then((count) => count === 2), 30_000)
    await mustCall(server, 'stop_sandbox', { params: { sandbox_id: ends } })
    const outputs = await Promise.all(both)
    assert.deepEqual(ended, ['ends', 'idles'])
    for (const output of outputs)
      for (const line of SAID) assert.ok(output.includes(line.slice('stdout '.length)), output)
  })

  test('the output of commands is in the log of their sandbox, and a terminal’s output has the source `output`', async () => {
    const id = await run('worked', 'exec sleep 600')
    assert.equal((await runMsb(server, ['exec', 'worked', '--', 'sh', '-c', 'echo piped; echo wrong >&2'])).code, 0)
    const terminal = startMsbInTerminal(server, ['exec', '-t', 'worked', '--', 'echo', 'shown'])
    assert.equal(await terminal.ended(), 0)
    await untilSaid(id, 'shown\r\n')
    const { lines } = await logsOf(id, 'follow=false')
    for (const [source, text] of [
      ['stdout', 'piped\n'],
      ['stderr', 'wrong\n'],
      ['output', 'shown\r\n'],
    ])
      assert.ok(
        lines.some((line) => line.source === source && line.text === text),
        JSON.stringify(lines),
      )
    const { lines: output } = await logsOf(id, 'follow=false&sources=output')
    assert.deepEqual([...new Set(output.map(({ source }) => source))], ['output'])
  })

  test('the log of an ended sandbox is complete, with the messages of its worker', async () => {
    const id = await run('lived', 'echo hello; sleep 2; exit 3') // `msb run` mistakes a sandbox that ends at once for one that never started
    await waitUntil(
      async () => (await mustCall(server, 'get_sandbox', { params: { sandbox_id: id } })).status === 'failed',
      30_000,
    )
    const { lines, hasEnded } = await logsOf(id, 'follow=false&sources=stdout,stderr,output,system')
    assert.equal(hasEnded, true)
    assert.ok(lines.some(({ source, text }) => source === 'stdout' && text === 'hello\n'))
    assert.ok(lines.filter(({ source }) => source === 'system').length >= 2, JSON.stringify(lines))
    assert.deepEqual(
      (await logsOf(id, 'sources=stdout&tail=1')).lines.map(({ text }) => text),
      ['hello\n'],
    )
  })

  test('a command that the kernel kills for memory is told to the client, the log and the events; a killed one is not', async () => {
    const { code, stderr } = await runMsb(server, [
      'run',
      '-d',
      '--memory',
      '64M',
      '--name',
      'hungry',
      DEMO_IMAGE,
      '--',
      'sleep',
      '600',
    ])
    assert.equal(code, 0, stderr)
    const { id } = await mustCall(server, 'get_sandbox_by_name', { params: { name: 'hungry' } })
    const told = async (): Promise<readonly string[]> =>
      (await logsOf(id, 'follow=false&sources=system')).lines.flatMap(({ text }) =>
        text.startsWith('out of memory') ? [text] : [],
      )
    const events = async () =>
      (await mustCall(server, 'list_events', { query: { sandbox_id: id, event_type: 'sandbox_out_of_memory' } })).data
    for (const script of ['kill -9 $$', 'exit 137']) {
      const killed = await runMsb(server, ['exec', 'hungry', '--', 'sh', '-c', script])
      assert.notEqual(killed.code, 0)
      assert.doesNotMatch(killed.stderr, /out of memory/)
    }
    assert.deepEqual([await told(), await events()], [[], []])

    const hog = ['dd', 'if=/dev/zero', 'of=/dev/null', 'bs=200M', 'count=1']
    const starved = await runMsb(server, ['exec', 'hungry', '--', ...hog])
    const reason =
      "out of memory: the kernel killed a process ('dd' with \\d+ MiB) because the sandbox reached its memory limit of 64 MiB"
    const pattern = new RegExp(reason.replace('(', '\\(').replace(')', '\\)'))
    assert.notEqual(starved.code, 0)
    assert.match(starved.stderr, pattern)
    const [line = ''] = await told()
    assert.match(line, pattern)
    await waitUntil(async () => (await events()).length === 1, 30_000)
    const [event] = await events()
    assert.deepEqual(
      { ...Object(event?.payload), run_id: '', worker: '' },
      { sandbox_id: id, name: 'hungry', run_id: '', worker: '', killed: 1, memory_mib: 64 },
    )
    assert.equal((await mustCall(server, 'get_sandbox', { params: { sandbox_id: id } })).status, 'running')

    assert.match(
      server.output(),
      /"name":"hungry","org_id":"[^"]+","org":"[^"]+","run_id":"[^"]+","msg":"out of memory: /,
    )

    const inShell = await runMsb(server, ['exec', 'hungry', '--', 'sh', '-c', `${hog.join(' ')}; echo survived $?`])
    assert.match(inShell.stdout, /survived 137/)
    await waitUntil(async () => (await told()).length === 2, 30_000)
  })
})

/** The number of open log streams in a server's metrics. */
async function openStreams({ url }: RealServer): Promise<number> {
  const text = await (await fetch(`${url}/metrics`)).text()
  return Number(/^sandyard_open_log_streams (\d+)$/m.exec(text)?.[1])
}
