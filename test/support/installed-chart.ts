import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { getCACertificates, setDefaultCACertificates } from 'node:tls'
import { runCommand } from '../../src/lib/run-command.ts'
import { ROOT } from './documents.ts'
import { startExternalPostgres } from './external-postgres.ts'
import { startForward } from './forward.ts'
import { applyObject, kubectl } from './kubernetes.ts'
import { makeProductImage, PRODUCT_IMAGE } from './product-image.ts'

const CHART = join(ROOT, 'packaging/helm/sandyard')
const NAMESPACE = 'cloud'
/** The address of the node, where Pods reach the tests. */
const NODE_ADDRESS = '10.244.0.1'
const LIMIT_MS = 10 * 60_000

/** The chart, installed as the release `cloud` in the namespace `cloud`. */
export type InstalledChart = {
  readonly url: string
  readonly key: string
  /** For the public client. */
  readonly clientEnv: Readonly<Record<string, string>>
  /** Runs `helm upgrade` with these values besides those of the installation and of earlier upgrades, and waits until all Pods are ready. */
  upgrade(...sets: readonly string[]): Promise<void>
  kubectl(...args: readonly string[]): Promise<string>
  /** The Pods of a component as objects of Kubernetes. */
  pods(component: 'server' | 'worker'): Promise<readonly Pod[]>
  close(): Promise<void>
}

export type Pod = {
  readonly metadata: { readonly name: string; readonly uid: string; readonly deletionTimestamp?: string }
  readonly status: { readonly containerStatuses?: readonly { readonly restartCount: number }[] }
}

/**
 * Makes the container image, loads it into the cluster, and installs the chart with a PostgreSQL of this machine, two servers
 * and a worker on the only node. `url` leads to the address of the Service.
 */
export async function installChart(machine: string): Promise<InstalledChart> {
  await using undo = new AsyncDisposableStack()
  const { archive } = await makeProductImage(machine)
  await runCommand('ctr', ['images', 'import', '--local', archive], { timeoutMs: LIMIT_MS })
  const database = undo.adopt(await startExternalPostgres(), (one) => one.close())
  const to = { host: '127.0.0.1', port: database.port }
  const postgres = undo.adopt(await startForward(NODE_ADDRESS, to), (one) => one.close())
  const own = (...args: readonly string[]) => kubectl('--namespace', NAMESPACE, ...args)
  await kubectl('create', 'namespace', NAMESPACE)
  await kubectl('label', 'namespace', NAMESPACE, 'pod-security.kubernetes.io/enforce=privileged')
  await kubectl('label', 'node', 'node', 'sandyard.io/worker=true')
  const inPods = (url: string): string => Object.assign(new URL(url), { host: postgres.address }).href
  await applyObject({
    apiVersion: 'v1',
    kind: 'Secret',
    metadata: { name: 'database', namespace: NAMESPACE },
    stringData: { DATABASE_URL: inPods(database.url), DATABASE_OWNER_URL: inPods(database.ownerUrl) },
  })
  const values = join(await mkdtemp(join(tmpdir(), 'sandyard-chart-')), 'values.json')
  undo.defer(() => rm(join(values, '..'), { recursive: true }))
  await writeFile(values, JSON.stringify(valuesFor(machine)))
  const helm = async (...args: readonly string[]): Promise<void> => {
    const all = [...args, 'cloud', CHART, '--namespace', NAMESPACE, '--values', values, '--wait', '--timeout', '8m']
    await runCommand(process.env['SANDYARD_TEST_HELM'] ?? 'helm', all, { timeoutMs: LIMIT_MS })
  }
  undo.defer(async () => {
    const args = ['uninstall', 'cloud', '--namespace', NAMESPACE, '--wait', '--timeout', '3m']
    await runCommand(process.env['SANDYARD_TEST_HELM'] ?? 'helm', args, { timeoutMs: LIMIT_MS })
  })
  await helm('install')
  const read = async (secret: string, field: string): Promise<string> => {
    const text = await own('get', 'secret', secret, '-o', `jsonpath={.data.${field}}`)
    return Buffer.from(text, 'base64').toString()
  }
  const authority = await read('cloud-tls', 'ca\\.crt')
  const key = await read('cloud-keys', 'SANDYARD_API_KEY')
  setDefaultCACertificates([...getCACertificates('default'), authority])
  const host = await own('get', 'service', 'cloud-server', '-o', 'jsonpath={.spec.clusterIP}')
  const service = undo.adopt(await startForward('127.0.0.1', { host, port: 443 }), (one) => one.close())
  const url = `https://localhost:${String(service.port)}`
  const home = join(values, '../home')
  const authorityFile = join(values, '../ca.pem')
  await writeFile(authorityFile, authority)
  await mkdir(home)
  const changed: string[] = []
  const undone = undo.move()
  return {
    url,
    key,
    clientEnv: { MSB_BACKEND: 'cloud', MSB_API_URL: url, MSB_API_KEY: key, HOME: home, SSL_CERT_FILE: authorityFile },
    upgrade: (...sets) => {
      changed.push(...sets)
      return helm('upgrade', ...changed.flatMap((one) => ['--set', one]))
    },
    kubectl: own,
    async pods(component) {
      const text = await own('get', 'pods', '-l', `app.kubernetes.io/component=${component}`, '-o', 'json')
      return (JSON.parse(text) as { readonly items: readonly Pod[] }).items
    },
    close: () => undone.disposeAsync(),
  }
}

/** Values of the test's machine: its image, small requests of Pods, and a folder outside its overlays. */
function valuesFor(machine: string): object {
  const [repository, tag] = PRODUCT_IMAGE.split(':')
  return {
    image: { repository, tag, pullPolicy: 'Never' },
    database: { secret: 'database' },
    server: { resources: { requests: { cpu: '50m', memory: '128Mi' } } },
    workers: {
      dataPath: join(machine, 'worker'),
      resources: { requests: { cpu: '50m', memory: '128Mi' } },
      drainSeconds: 5,
    },
  }
}
