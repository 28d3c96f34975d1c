import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { SETTINGS } from '../../src/config.ts'
import { runCommand } from '../../src/lib/run-command.ts'
import { assertNone, ROOT } from '../support/documents.ts'

// The Helm chart. Where SANDYARD_TEST_HELM names the program `helm`, it renders the chart too.

const CHART = join(ROOT, 'packaging/helm/sandyard')
const HELM = process.env['SANDYARD_TEST_HELM']
const templates = globSync('templates/*', { cwd: CHART }).map((path) => readFileSync(join(CHART, path), 'utf8'))
const all = templates.join('\n')
type Schema = { readonly properties?: Readonly<Record<string, Schema>> }
const schema = JSON.parse(readFileSync(join(CHART, 'values.schema.json'), 'utf8')) as Schema

test('the version of the chart is that of the program', () => {
  const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as { readonly version: string }
  const chart = readFileSync(join(CHART, 'Chart.yaml'), 'utf8')
  assert.match(chart, new RegExp(`^version: ${version}$`, 'm'))
  assert.match(chart, new RegExp(`^appVersion: ${version}$`, 'm'))
})

test('the chart has no symbolic links, each of which Helm would print', () => {
  const files = globSync('**', { cwd: CHART, withFileTypes: true })
  assert.ok(files.some(({ name }) => name === 'driver.yaml'))
  assertNone(
    files.filter((file) => file.isSymbolicLink()).map(({ name }) => name),
    'it is a symbolic link',
  )
})

test('every variable that the chart sets is a setting', () => {
  const known = new Set<string>([
    ...Object.values(SETTINGS).map(({ variable }) => variable),
    'NODE_EXTRA_CA_CERTS',
    'POD_IP',
  ])
  const set = [...all.matchAll(/\bname: ([A-Z][A-Z0-9_]+)\b/g)].map(([, name = '']) => name)
  assert.ok(set.includes('SANDYARD_JOIN_TOKEN_FILE'))
  assertNone(
    set.filter((name) => !known.has(name)),
    'no such setting',
  )
})

test('sandboxes that are Pods run on when the Pod of their worker is replaced, unless `driver.env` says otherwise', () => {
  const template = readFileSync(join(CHART, 'templates/driver.yaml'), 'utf8')
  const variables = template.slice(template.indexOf(' env:'), template.indexOf(' ports:'))
  // Of two variables with one name, Kubernetes takes the later one. The image sets `stop`.
  assert.match(variables, /SANDYARD_SHUTDOWN, value: keep [^]*\.Values\.driver\.env /)
})

const query = /^ *query: (.*)$/m
const guide = readFileSync(join(ROOT, 'docs/guide/kubernetes.md'), 'utf8')

test('an autoscaler counts no worker whose sandboxes are Pods, and the guide has the query of the chart', () => {
  const [, inChart = ''] = query.exec(all) ?? []
  assert.match(inChart, /sandyard_workers\{state="live", driver!="kubernetes"/)
  assert.ok(guide.includes(`\n${inChart.replaceAll('{{ $own }}', '')}\n`), inChart)
})

test('every value that a template reads is in the schema, and every value of the schema is read', () => {
  const read = new Set([...all.matchAll(/\.Values\.([\w.]+)/g)].map(([, path = '']) => path))
  assertNone(
    [...read].filter((path) => lookUp(path.split('.')) === undefined),
    'a template reads it, and the schema lacks it',
  )
  const isRead = (path: string): boolean => [...read].some((one) => path === one || path.startsWith(`${one}.`))
  assertNone(
    leaves(schema).filter((path) => path !== 'global' && !isRead(path)),
    'the schema has it, and no template reads it',
  )
})

test(
  'the chart renders, and refuses values that it does not know',
  { skip: HELM === undefined ? 'SANDYARD_TEST_HELM names no helm' : false },
  async () => {
    const render = (...sets: readonly string[]) => {
      const values = sets.flatMap((one) => ['--set', one])
      const args = ['template', 'cloud', CHART, '--kube-version', '1.34.4', ...values]
      return runCommand(HELM ?? '', args, { timeoutMs: 60_000 })
    }
    const { stdout } = await render('database.secret=db')
    assert.deepEqual([...stdout.matchAll(/^kind: (\w+)$/gm)].map(([, kind = '']) => kind).toSorted(), [
      'ClusterRole', 'ClusterRoleBinding', 'DaemonSet', 'Deployment', 'NetworkPolicy', 'PodDisruptionBudget', 'Secret', 'Secret', 'Service', 'ServiceAccount', 'ServiceAccount',
    ]) // prettier-ignore
    const everything = await render('database.cloudnativepg.enabled=true', 'workers.kind=StatefulSet', 'workers.keda.enabled=true', 'workers.keda.prometheusUrl=http://p:9090', 'ingress.enabled=true', 'ingress.host=a.b', 'ingress.previewDomain=p.b', 'gateway.enabled=true', 'gateway.parent.name=g', 'metrics.serviceMonitor=true') // prettier-ignore
    for (const kind of ['Cluster', 'HTTPRoute', 'Ingress', 'ScaledObject', 'ServiceMonitor', 'StatefulSet'])
      assert.match(everything.stdout, new RegExp(`^kind: ${kind}$`, 'm'))
    const own = 'namespace="default", service="cloud-server"'
    const [, queried = ''] = query.exec(everything.stdout) ?? []
    assert.equal(queried.split(own).length, 3, `both parts of the query select the release: ${queried}`)
    const scraped = await render('database.secret=db', 'workers.kind=StatefulSet', 'workers.keda.enabled=true', 'workers.keda.prometheusUrl=http://p:9090') // prettier-ignore
    assert.ok(
      guide.includes(`\n${query.exec(scraped.stdout)?.[1] ?? 'none'}\n`),
      'without it, the query is that of the guide',
    )
    const driver = await render('database.secret=db', 'driver.enabled=true', 'driver.helperImage=helper:1', 'driver.namespace=boxes') // prettier-ignore
    for (const kind of ['Namespace', 'ResourceQuota', 'StatefulSet', 'ValidatingAdmissionPolicyBinding'])
      assert.match(driver.stdout, new RegExp(`^kind: ${kind}$`, 'm'))
    assertNone(
      [...driver.stdout.matchAll(/.*\bsandboxes\b.*/g)]
        .map(([line]) => line)
        .filter((line) => !/^ *#|#.*sandboxes|sandyard-sandboxes/.test(line)),
      'it names another namespace than driver.namespace',
    )
    assert.match(driver.stdout, /request\.userInfo\.username == '+system:serviceaccount:default:cloud-driver'/)
    assert.match(driver.stdout, /pod-security\.kubernetes\.io\/enforce: restricted/)
    const rules = await render('database.secret=db', 'driver.enabled=true', 'driver.helperImage=helper:1', 'driver.env.SANDYARD_KUBERNETES_NETWORK=rules') // prettier-ignore
    assert.match(rules.stdout, /pod-security\.kubernetes\.io\/enforce: privileged/)
    await assert.rejects(render('database.secret=db', 'driver.enabled=true'), /driver\.helperImage: name the image/)
    await assert.rejects(render(), /database\.secret: name a Secret/)
    await assert.rejects(
      render('database.secret=db', 'server.replica=3'),
      /additional properties 'replica' not allowed/,
    )
  },
)

function lookUp(path: readonly string[], at: Schema | undefined = schema): Schema | undefined {
  const [first, ...rest] = path
  return first === undefined || at === undefined ? at : lookUp(rest, at.properties?.[first])
}

function leaves({ properties }: Schema, path = ''): readonly string[] {
  if (properties === undefined) return [path]
  return Object.entries(properties).flatMap(([name, one]) => leaves(one, path === '' ? name : `${path}.${name}`))
}
