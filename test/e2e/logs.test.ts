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
})

/** The number of open log streams in a server's metrics. */
async function openStreams({ url }: RealServer): Promise<number> {
  const text = await (await fetch(`${url}/metrics`)).text()
  return Number(/^sandyard_open_log_streams (\d+)$/m.exec(text)?.[1])
}
