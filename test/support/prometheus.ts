import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import { freePort } from './free-port.ts'
import { waitUntil } from './wait.ts'

/** The files for Prometheus and Grafana that operators use. */
export const PROMETHEUS_FILES = join(import.meta.dirname, '../../packaging/prometheus')
export const DASHBOARD = join(import.meta.dirname, '../../packaging/grafana/sandyard.json')

const LIMIT_MS = 30_000

/** Why Prometheus can't run here, or false. For `{ skip }`. */
export function whyNoPrometheus(): string | false {
  const folders = (process.env['PATH'] ?? '').split(delimiter)
  const missing = ['prometheus', 'promtool'].find((name) => !folders.some((folder) => existsSync(join(folder, name))))
  return missing === undefined ? false : `${missing} is not installed (Debian: prometheus)`
}

/** A Prometheus that scrapes one server every second. */
export type TestPrometheus = {
  /** Calls its HTTP API, asserts that it succeeds, and returns the data of the answer. */
  ask(path: string, parameters?: Readonly<Record<string, string>>): Promise<unknown>
} & AsyncDisposable

/** Starts the real Prometheus with the example configuration and the alert rules. Its data is in `folder`. */
export async function startPrometheus(target: URL, folder: string): Promise<TestPrometheus> {
  const example = readFileSync(join(PROMETHEUS_FILES, 'prometheus.yml'), 'utf8')
  const config = [
    ['127.0.0.1:8080', target.host],
    ['scrape_interval: 15s', 'scrape_interval: 1s'],
    ['evaluation_interval: 15s', 'evaluation_interval: 1s'],
    ['- sandyard.rules.yml', `- ${join(PROMETHEUS_FILES, 'sandyard.rules.yml')}`],
  ].reduce((text, [from = '', to = '']) => {
    assert.ok(text.includes(from), `prometheus.yml does not contain '${from}'`)
    return text.replace(from, to)
  }, example)
  const path = join(folder, 'prometheus.yml')
  writeFileSync(path, config)
  const address = `127.0.0.1:${String(await freePort())}`
  const args = [
    `--config.file=${path}`,
    `--storage.tsdb.path=${join(folder, 'data')}`,
    `--web.listen-address=${address}`,
  ]
  const child = spawn('prometheus', args, { stdio: ['ignore', 'ignore', 'pipe'] })
  let said = ''
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    said += text
  })
  const hasEnded = (): boolean => child.exitCode !== null || child.signalCode !== null
  const stop = async (): Promise<void> => {
    child.kill('SIGTERM')
    await waitUntil(hasEnded, LIMIT_MS)
  }
  try {
    await waitUntil(async () => {
      assert.ok(!hasEnded(), `Prometheus ended: ${said}`)
      return (await fetch(`http://${address}/-/ready`).catch(() => null))?.status === 200
    }, LIMIT_MS)
  } catch (error) {
    await stop()
    throw error
  }
  return {
    async ask(path, parameters = {}) {
      const query = new URLSearchParams(parameters)
      const reply = await fetch(`http://${address}/api/v1/${path}?${String(query)}`)
      const text = await reply.text()
      assert.equal(reply.status, 200, `${path} ${String(query)}: ${text}`)
      const answer: { readonly data: unknown } = JSON.parse(text)
      return answer.data
    },
    [Symbol.asyncDispose]: stop,
  }
}
