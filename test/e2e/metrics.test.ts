import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { mustCall } from '../support/api.ts'
import { assertNone } from '../support/documents.ts'
import { freePort } from '../support/free-port.ts'
import { listMetrics } from '../support/metrics.ts'
import { DASHBOARD, PROMETHEUS_FILES, startPrometheus, whyNoPrometheus, type TestPrometheus } from '../support/prometheus.ts' // prettier-ignore
import { makeProgram, runProgram } from '../support/program.ts'
import { startServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// The metrics of a real server as the real Prometheus sees them, with the rules and the dashboard that operators use.

type Rules = { readonly groups: readonly { readonly rules: readonly Rule[] }[] }
type Rule = { readonly name: string; readonly query: string; readonly health: string; readonly state: string }
type Vector = { readonly result: readonly { readonly metric: Readonly<Record<string, string>>; readonly value: readonly [number, string] }[] } // prettier-ignore
type Dashboard = { readonly panels: readonly { readonly title: string; readonly targets?: readonly { readonly expr: string }[] }[] } // prettier-ignore

describe('metrics in Prometheus', { skip: whyNoPrometheus() }, () => {
  let server: RealServer
  let prometheus: TestPrometheus
  const folder = mkdtempSync(join(tmpdir(), 'sandyard-prometheus-'))
  before(async () => {
    server = await startServer({ SANDYARD_DRIVER: 'simulated' })
    const query = { start: 'true', wait_for: 'running' }
    await mustCall(server, 'create_sandbox', { query, body: { name: 'box', image: 'localhost/demo' } })
    prometheus = await startPrometheus(new URL(server.url), folder)
  })
  after(async () => {
    await prometheus[Symbol.asyncDispose]()
    await server.close()
    rmSync(folder, { recursive: true })
  })

  /** The value of an expression that has one sample. Undefined: it has none. */
  async function valueOf(query: string): Promise<number | undefined> {
    const { result } = (await prometheus.ask('query', { query })) as Vector
    return result[0] === undefined ? undefined : Number(result[0].value[1])
  }

  test('Prometheus scrapes the server, and sums over processes are right', async () => {
    await waitUntil(async () => (await valueOf('sum(up{job="sandyard"})')) === 1)
    await waitUntil(async () => (await valueOf('sum(sandyard_open_runs{status="running"})')) === 1)
    assert.equal(await valueOf('sum(sandyard_workers{state="live",driver="simulated"})'), 1)
    assert.equal(await valueOf('sum(sandyard_leader)'), 1)
    assert.equal(await valueOf('sandyard_worker_used_vcpus{worker="local"}'), 1)
    assert.equal(await valueOf('sum(sandyard_run_start_duration_seconds_count)'), 1)
    assert.equal(
      await valueOf('sandyard_run_start_phase_duration_seconds_count{phase="runtime",driver="simulated"}'),
      1,
    )
  })

  test('every rule is evaluated without an error, and no alert fires for a healthy server', async () => {
    const read = async () => ((await prometheus.ask('rules')) as Rules).groups.flatMap(({ rules }) => rules)
    await waitUntil(async () => (await read()).every(({ health }) => health !== 'unknown'))
    const rules = await read()
    assert.ok(rules.length >= 20)
    assertNone(
      rules.filter(({ health }) => health !== 'ok').map(({ name }) => name),
      'Prometheus can not evaluate',
    )
    // A busy machine may make an alert pending for a moment; one whose condition stays never gets inactive.
    await waitUntil(async () => (await read()).every(({ state }) => state === 'inactive'))
  })

  test('rules and dashboard use only metrics that a server shows, and Prometheus evaluates each expression', async () => {
    const shown = (await (await fetch(`${server.url}/metrics`)).text()).matchAll(/^# TYPE (\w+) /gm)
    const known = new Set([
      ...(await listMetrics()).map(({ name }) => name),
      ...[...shown].map(([, name]) => name),
      'up',
    ])
    const { panels } = JSON.parse(readFileSync(DASHBOARD, 'utf8')) as Dashboard
    const rules = ((await prometheus.ask('rules')) as Rules).groups.flatMap((group) => group.rules)
    const expressions = [
      ...rules.map(({ name, query }) => ({ where: name, query })),
      ...panels.flatMap(({ title, targets = [] }) =>
        targets.map(({ expr }) => {
          const query = expr.replaceAll('$job', 'sandyard').replaceAll('$__rate_interval', '1m')
          return { where: title, query }
        }),
      ),
    ]
    assert.ok(expressions.length > 50)
    for (const { where, query } of expressions) {
      await prometheus.ask('query', { query })
      const names = query.match(/\b(sandyard|process|nodejs)_\w+/g) ?? []
      const unknown = names.filter((name) => !known.has(name) && !known.has(name.replace(/_(bucket|count|sum)$/, '')))
      assertNone(unknown, `no such metric, in "${where}"`)
    }
  })

  test('a worker shows the metrics of its machine on its own address, and only to those who may read them', async () => {
    const address = `127.0.0.1:${String(await freePort())}`
    const dataDir = join(folder, 'worker')
    const token = await runProgram(['worker', 'token'], { SANDYARD_DATA_DIR: server.dataDir })
    const key = 'the key of the metrics'.replaceAll(' ', '-')
    const settings = {
      SANDYARD_DATA_DIR: dataDir,
      SANDYARD_JOIN: server.url,
      SANDYARD_JOIN_TOKEN: /syw_\S+/.exec(token.output)?.[0] ?? assert.fail(token.output),
      SANDYARD_DRIVER: 'simulated',
      SANDYARD_WORKER_METRICS_ADDRESS: address,
      SANDYARD_METRICS_KEY: key,
    }
    const worker = makeProgram(['worker'], settings, /ready: the control plane/)
    try {
      await worker.start()
      assert.equal((await fetch(`http://${address}/metrics`)).status, 401)
      const headers = { authorization: `Bearer ${key}` }
      assert.equal((await fetch(`http://${address}/`, { headers })).status, 404)
      const text = await (await fetch(`http://${address}/metrics`, { headers })).text()
      assert.match(text, /^sandyard_machine_runs\{phase="running"\} 0$/m)
      assert.match(text, /^sandyard_machine_last_report_timestamp_seconds \d/m)
      assert.match(text, /^sandyard_machine_volumes_free_bytes \d/m)
      assert.match(text, /^sandyard_data_folder_free_bytes \d/m)
      assert.equal(execFileSync('promtool', ['check', 'metrics'], { input: text, encoding: 'utf8' }), '')
    } finally {
      await worker.stop()
    }
  })

  test('promtool finds nothing to improve in the metrics of a server', async () => {
    const input = await (await fetch(`${server.url}/metrics`)).text()
    assert.equal(execFileSync('promtool', ['check', 'metrics'], { input, encoding: 'utf8' }), '')
  })
})

test(
  'promtool accepts the configuration, and the alerts fire exactly when their tests say',
  { skip: whyNoPrometheus() },
  () => {
    const run = (...args: readonly string[]) =>
      execFileSync('promtool', args, { cwd: PROMETHEUS_FILES, encoding: 'utf8' })
    assert.match(run('check', 'config', 'prometheus.yml'), /SUCCESS/)
    assert.match(run('check', 'rules', 'sandyard.rules.yml'), /SUCCESS/)
    assert.match(run('test', 'rules', 'sandyard.rules.test.yml'), /SUCCESS/)
  },
)
