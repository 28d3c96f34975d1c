import assert from 'node:assert/strict'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { asId, type OrgId } from '../../src/domain/ids.ts'
import { makeDesiredRun } from '../support/desired-run.ts'
import { openKubernetesDriver, type TestDriver } from '../support/kubernetes-driver.ts'
import { applyObject, kubectl, whyNoKubernetes } from '../support/kubernetes.ts'
import { egressPolicy, egressRule, listeningRun, podNetworkOf, startAsPod } from '../support/pod-network.ts'
import { HELPER_IMAGE, makeRealNamespace, type RealNamespace } from '../support/real-kubernetes.ts'
import { waitUntil } from '../support/wait.ts'
import { POD_SPEC } from '../worker/drivers/kubernetes-conformance.ts'

// The network of Pods by rules that they load themselves, in a cluster that enforces no NetworkPolicies.

const skip = whyNoKubernetes()
const LIMIT = { skip, timeout: 180_000 }
const MANIFESTS = join(import.meta.dirname, '../../packaging/kubernetes/driver.yaml')
const STANDARD = 'pod-security.kubernetes.io/enforce'
const OPENED = { deny: [], allow: ['10.0.0.0/8'] }
const pods = podNetworkOf('rules')
let namespace: RealNamespace
let driver: TestDriver | null = null

before(async () => {
  if (skip === false) namespace = await makeRealNamespace('rules')
})
after(async () => {
  if (skip !== false) return
  await driver?.close()
  await namespace.remove()
})

function open(): Promise<TestDriver> {
  return openKubernetesDriver({
    dir: join(namespace.folder, 'driver'),
    access: namespace.access,
    helperImage: HELPER_IMAGE,
    network: 'rules',
  })
}

test('in a namespace that refuses NET_ADMIN, the worker does not start, and says what to do', LIMIT, async () => {
  for (const standard of ['restricted', 'baseline']) {
    await kubectl('label', 'namespace', 'rules', '--overwrite', `${STANDARD}=${standard}`)
    await assert.rejects(open(), /the namespace rules admits no Pods with .*NET_ADMIN.*enforce=privileged/)
    assert.deepEqual(await namespace.pods(), [])
  }
})

test('where the namespace admits it, the canary sees that the rules hold', LIMIT, async () => {
  await kubectl('label', 'namespace', 'rules', '--overwrite', `${STANDARD}=privileged`)
  driver = await open()
  const { report } = await driver.probe()
  assert.match(report.isolation, /packet rules in the network namespace of each Pod/)
  assert.deepEqual(
    report.abilities.filter((ability) => ability.startsWith('network')),
    ['network_off', 'network_policy', 'network_max_connections', 'network_max_udp_connections'],
  )
})

test(
  'a sandbox reaches exactly what its rules allow, also a part of the ports beside ICMP, and nothing reaches it',
  LIMIT,
  async () => {
    const target = await pods.startTarget()
    const [first, second] = [`${target}:8080`, `${target}:8081`]
    const [apiServer, node] = ['10.96.0.1:443', '10.244.0.1:10250']
    const all = [apiServer, node, first, second]
    // A Pod without rules reaches them all. So what a sandbox doesn't reach is closed by its rules.
    await waitUntil(async () => (await pods.reachedFrom(pods.target, all)).length === all.length, 30_000)
    const open = egressRule({ destination: { cidr: target }, ports: [{ start: 8080, end: 8080 }], protocols: ['tcp'] })
    const closed = egressRule({ action: 'deny', ports: [{ start: 8081, end: 8081 }] })
    for (const [network, network_ranges, expected] of [
      [{ policy: null }, { deny: [], allow: [] }, []],
      [{ enabled: false }, OPENED, []],
      [{ policy: egressPolicy('deny', open) }, OPENED, [first]],
      // No NetworkPolicy can express it, because ICMP stays open. Nobody opens a node.
      [{ policy: egressPolicy('allow', closed) }, OPENED, [apiServer, first]],
    ] as const) {
      await using sandbox = await startAsPod(driver, listeningRun({ network, network_ranges }))
      assert.deepEqual(await pods.reachedFrom(sandbox, all), expected, JSON.stringify(network))
      const own = `${await pods.addressOf(sandbox.pod)}:8080`
      await waitUntil(async () => (await pods.reachedFrom(sandbox, [own])).length === 1, 30_000)
      assert.deepEqual(await pods.reachedFrom(pods.target, [own]), [])
    }
  },
)

/**
 * Connects four times and keeps the connections: one beyond the limit gets no answer. Then sends packets to the
 * resolver, to port 53 and another one, and elsewhere.
 */
const CONNECT = `
use Socket;
my ($target, @held) = ('TARGET');
open my $config, '<', '/etc/resolv.conf' or die;
my ($resolver) = map { /^nameserver (\\S+)/ ? $1 : () } <$config>;
$SIG{ALRM} = sub { };
for (1 .. 4) {
    socket my $socket, AF_INET, SOCK_STREAM, 0 or die;
    alarm 1;
    push @held, $socket if connect $socket, pack_sockaddr_in(8080, inet_aton($target));
    alarm 0;
}
print scalar @held;
for my $to ([53, $resolver], [54, $resolver], [9, $target]) {
    socket my $socket, AF_INET, SOCK_DGRAM, 0 or die;
    print ' ', defined send($socket, 'x' x 12, 0, pack_sockaddr_in($to->[0], inet_aton($to->[1]))) ? 'sent' : 'denied';
}
`

test(
  'a sandbox has no more connections than it asks for, and of its resolver it reaches DNS alone, which does not count',
  LIMIT,
  async () => {
    const program = CONNECT.replace('TARGET', await pods.addressOf(pods.target.pod))
    const policy = egressPolicy('allow')
    for (const [network, network_ranges, seen] of [
      [{ policy, max_connections: 2 }, OPENED, '2 sent denied denied'],
      [{ policy, max_connections: 3, max_udp_connections: 1 }, OPENED, '3 sent denied sent'],
      [{ policy, max_connections: 0 }, OPENED, '4 sent denied sent'],
      [{ policy: null }, { deny: [], allow: [] }, '0 sent denied denied'],
    ] as const) {
      await using sandbox = await startAsPod(driver, listeningRun({ network, network_ranges }))
      assert.equal(await pods.perl(sandbox, program), seen, JSON.stringify(network))
    }
  },
)

/**
 * Asks the kernel to delete the table of the rules, as nft does. Prints the number of the error. In a user namespace of
 * its own, a process has all capabilities, but none over the network of the Pod; the seccomp profile refuses such a
 * namespace first.
 */
const DELETE_RULES = `
use Socket;
syscall(UNSHARE, 0x10000000);
socket my $socket, 16, SOCK_RAW, 12 or die;
my $name = "sandyard\\0";
my $attribute = pack 'S S a* x![4]', 4 + length $name, 1, $name;
send $socket, pack('L S S L L C C n a*', 20 + length $attribute, 10 << 8 | 2, 5, 1, 0, 1, 0, 0, $attribute), 0 or die;
recv $socket, my $answer, 4096, 0;
print -unpack 'x16 l', $answer;
`
const UNSHARE: Readonly<Record<string, number>> = { x64: 272, arm64: 97 }

test(
  'the processes of a sandbox have no capability, and the kernel does not let them change the rules',
  LIMIT,
  async () => {
    await using sandbox = await startAsPod(
      driver,
      listeningRun({ network: { enabled: false }, network_ranges: OPENED }),
    )
    const status = `open my $f, '<', '/proc/self/status'; print grep { /^(Cap|NoNew|Seccomp:)/ } <$f>`
    assert.deepEqual(
      (await pods.perl(sandbox, status)).split('\n').map((line) => line.replace(/\s+/g, '')),
      [
        ...['Inh', 'Prm', 'Eff', 'Bnd', 'Amb'].map((set) => `Cap${set}:${'0'.repeat(16)}`),
        'NoNewPrivs:1',
        'Seccomp:2',
        '',
      ],
    )
    const [operationNotPermitted, unshare] = ['1', String(UNSHARE[process.arch])]
    assert.equal(await pods.perl(sandbox, DELETE_RULES.replace('UNSHARE', unshare)), operationNotPermitted)
    assert.deepEqual(await pods.reachedFrom(sandbox, [`${await pods.addressOf(pods.target.pod)}:8080`]), [])
  },
)

test(
  'with driver.yaml, the worker makes namespaces that admit rules, and no other Pods with privileges',
  LIMIT,
  async () => {
    await kubectl('apply', '-f', MANIFESTS)
    await kubectl('label', 'namespace', 'sandboxes', '--overwrite', `${STANDARD}=privileged`)
    const token = (await kubectl('create', 'token', '-n', 'sandboxes', 'sandyard-driver')).trim()
    const access = {
      ...namespace.access,
      namespace: 'sandboxes',
      certificate: null,
      readToken: () => Promise.resolve(token),
    }
    const options = { network: 'rules', namespaceMode: 'organization', helperImage: HELPER_IMAGE } as const
    const ofOrganizations = await openKubernetesDriver({
      ...options,
      dir: join(namespace.folder, 'organizations'),
      access,
    })
    try {
      const plan = { max_running: 2, max_vcpus_per_sandbox: 1, max_memory_mib_per_sandbox: 64 }
      const run = { ...makeDesiredRun(POD_SPEC), org_id: asId<OrgId>('rules'), org_limits: plan }
      const ofRun = `sandboxes-${run.org_id}`
      await using sandbox = await startAsPod(ofOrganizations, run)
      const read = (what: string, path: string): Promise<string> =>
        kubectl('get', what, '-n', ofRun, '-o', `jsonpath={${path}}`)
      assert.equal(
        await read(`namespace/${ofRun}`, '.metadata.labels.pod-security\\.kubernetes\\.io/enforce'),
        'privileged',
      )
      const made = JSON.parse(await kubectl('get', 'pod', '-n', ofRun, sandbox.pod, '-o', 'json')) as MadePod
      const { initContainers, containers, volumes, ...rest } = made.spec
      const [rules, ...fills] = initContainers
      const asked = (spec: object): Promise<unknown> => {
        const pod = { apiVersion: 'v1', kind: 'Pod', metadata: { name: 'asked', namespace: ofRun }, spec }
        return applyObject(pod, '--dry-run=server', '--as=system:serviceaccount:sandboxes:sandyard-driver')
      }
      await asked(made.spec)
      const [container] = containers
      const withCapability = { ...container?.securityContext, capabilities: { drop: ['ALL'], add: ['NET_ADMIN'] } }
      for (const [spec, refusal] of [
        [{ ...made.spec, hostNetwork: true }, /namespace of the node/],
        [
          { ...made.spec, volumes: [...volumes, { name: 'node', hostPath: { path: '/' } }] },
          /folder or a namespace of the node/,
        ],
        [
          { ...made.spec, containers: [{ ...container, securityContext: withCapability }] },
          /init container of packet rules alone/,
        ],
        [{ ...made.spec, containers: [{ ...container, securityContext: { privileged: true } }] }, /with privileges/],
        [{ ...rest, volumes, containers: [{ ...container, name: 'rules' }] }, /packet rules alone/],
        [
          { ...rest, volumes, containers, initContainers: [{ ...rules, name: 'other' }, ...fills] },
          /packet rules alone/,
        ],
      ] as const)
        await assert.rejects(asked(spec), refusal)
    } finally {
      await ofOrganizations.close()
      await kubectl('delete', 'namespace', '--ignore-not-found', '--wait=false', 'sandboxes', 'sandboxes-rules')
    }
  },
)

type MadeContainer = { readonly name: string; readonly securityContext: object }
type MadePod = {
  readonly spec: {
    readonly initContainers: readonly MadeContainer[]
    readonly containers: readonly MadeContainer[]
    readonly volumes: readonly object[]
  }
}
