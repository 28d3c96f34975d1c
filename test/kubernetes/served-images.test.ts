import assert from 'node:assert/strict'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import { TOOLBOX, toolCommand, TOOLS_FOLDER } from '../../src/contract/workers/guest-tools.ts'
import type { RunId } from '../../src/domain/ids.ts'
import { makeDesiredRun } from '../support/desired-run.ts'
import { openKubernetesDriver, type TestDriver } from '../support/kubernetes-driver.ts'
import { kubectl, whyNoKubernetes } from '../support/kubernetes.ts'
import { HELPER_IMAGE, makeRealNamespace, type RealNamespace } from '../support/real-kubernetes.ts'
import { loadTestImage, serveOnNode } from '../support/served-images.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../support/spec.ts'
import { makeTestImage, type TestEntry } from '../support/test-image.ts'
import { describeKubernetesConformance, POD_SPEC } from '../worker/drivers/kubernetes-conformance.ts'

// Images with the toolbox as a layer, unpacked by the containerd of a real cluster.

const skip = whyNoKubernetes()
const LIMIT = { skip, timeout: 60_000 }
const NEVER = new AbortController().signal
const { runtime } = DEFAULT_SPEC_FOR_TESTS

type World = {
  readonly namespace: RealNamespace
  readonly registry: Awaited<ReturnType<typeof serveOnNode>>
  open(): Promise<TestDriver>
  remove(): Promise<void>
}

async function makeWorld(name: string): Promise<World> {
  const namespace = await makeRealNamespace(name)
  const registry = await serveOnNode(namespace.folder)
  const dir = join(namespace.folder, 'driver')
  return {
    namespace,
    registry,
    open: () =>
      openKubernetesDriver({
        dir,
        access: namespace.access,
        helperImage: HELPER_IMAGE,
        images: registry.served,
      }),
    async remove() {
      await registry.close()
      await namespace.remove()
    },
  }
}

describeKubernetesConformance({
  name: 'kubernetes (real, images with the toolbox)',
  whyNot: skip === false ? null : skip,
  make: async () => {
    const world = await makeWorld('toolbox-conformance')
    return { open: () => world.open(), pods: () => world.namespace.pods(), remove: () => world.remove() }
  },
})

let world: World
let driver: TestDriver

before(async () => {
  if (skip !== false) return
  world = await makeWorld('toolbox')
  driver = await world.open()
})
after(async () => {
  if (skip !== false) return
  for (const { run_id } of await driver.list()) await driver.remove(run_id)
  await driver.close()
  await world.remove()
})

/** Runs perl of the toolbox in a sandbox, which needs nothing of its image. */
async function runPerl(run: RunId, script: string): Promise<string> {
  const [cmd = '', ...args] = toolCommand('hold.pl')
  const perl = args.slice(0, args.indexOf('-e'))
  const guest = await driver.guestOf(run)
  const plain = { env: [], cwd: null, user: null, tty: null, rlimits: [] }
  const process = await guest.exec({
    cmd,
    args: [...perl, `-I${TOOLS_FOLDER}/${TOOLBOX.modules}`, '-e', script],
    ...plain,
  })
  const [out, errors] = await Promise.all([text(process.stdout), process.stderr === null ? '' : text(process.stderr)])
  return out + errors
}

async function podOf(run: RunId): Promise<{ readonly spec: Readonly<Record<string, unknown>> }> {
  const pod = await kubectl('get', 'pod', '-n', 'toolbox', `sandyard-${run}`, '-o', 'json')
  return JSON.parse(pod) as { spec: Record<string, unknown> }
}

test(
  'the Pod of such an image has one container and no volume, and names the digest of the loaded image',
  LIMIT,
  async () => {
    const desired = makeDesiredRun(POD_SPEC)
    await driver.start(desired, NEVER)
    const { spec } = await podOf(desired.run_id)
    assert.deepEqual(
      [spec['volumes'], spec['initContainers'], (spec['containers'] as readonly object[]).length],
      [undefined, undefined, 1],
    )
    const { digest } = (await world.registry.images.inspect('localhost/box:1')) ?? {}
    const { facts } = (await driver.list()).find(({ run_id }) => run_id === desired.run_id) ?? {}
    const reported = facts?.['image_digest']
    assert.ok(reported === undefined || reported === digest, `${String(reported)} is not ${String(digest)}`)
    await driver.remove(desired.run_id)
  },
)

test('a workload with an entrypoint, and one of the image alone, need no volume either', LIMIT, async () => {
  for (const entrypoint of [['sh', '-c'], null]) {
    const cmd = entrypoint === null ? ['sleep', '3600'] : ['sleep 3600']
    const desired = makeDesiredRun({ ...POD_SPEC, runtime: { ...runtime, entrypoint, cmd } })
    await driver.start(desired, NEVER)
    assert.equal((await podOf(desired.run_id)).spec['volumes'], undefined)
    assert.equal(await runPerl(desired.run_id, 'print "fine"'), 'fine')
    await driver.remove(desired.run_id)
  }
})

const FOLDER: Partial<TestEntry> = { type: 'directory' }
/** What an image can have in the place of the worker's folder. */
const HOSTILE: Readonly<Record<string, readonly TestEntry[]>> = {
  'a link to a folder': [
    { path: 'etc', ...FOLDER },
    { path: '.msb', type: 'symlink', target: '/etc' },
  ],
  'a link that leads nowhere': [{ path: '.msb', type: 'symlink', target: '../../../../nowhere' }],
  'a file': [{ path: '.msb', content: 'file' }],
  'a link in the place of the toolbox': [
    { path: 'etc/tools', ...FOLDER, mode: 0o777 },
    { path: 'etc/tools/extra', content: 'extra' },
    { path: '.msb', ...FOLDER, mode: 0o777, uid: 1000 },
    { path: '.msb/tools', type: 'symlink', target: '/etc/tools' },
  ],
  'files of its own': [
    { path: '.msb', ...FOLDER, mode: 0o777, uid: 1000 },
    { path: '.msb/extra', content: 'extra' },
    { path: '.msb/scripts/id', content: '#!/bin/sh', mode: 0o755 },
    { path: '.msb/tools', ...FOLDER, mode: 0o777, uid: 1000 },
    { path: '.msb/tools/extra', content: 'extra', uid: 1000 },
    { path: '.msb/tools/init', content: 'init', mode: 0o777, uid: 1000 },
    { path: '.msb/tools/perl', ...FOLDER, mode: 0o777, uid: 1000 },
    { path: '.msb/tools/perl5/strict.pm', content: 'die', mode: 0o666, uid: 1000 },
    { path: '.msb/tools/agent.pl', type: 'symlink', target: '/dev/null' },
  ],
}
/** Prints what there is below the folder, in how far this user may change it, and whether anything is behind the links of the image. */
const LOOK = `use strict; use warnings;
for my $path ('/.msb', '/.msb/scripts', '/.msb/tools', '/.msb/tools/init', '/.msb/tools/perl', '/.msb/tools/perl5/strict.pm') {
  my @stat = lstat $path;
  printf "%s %o %d:%d\\n", $path, @stat[2, 4, 5];
}
for my $folder ('/.msb', '/.msb/scripts') {
  opendir my $dir, $folder or die;
  print "$folder has @{[sort grep { !/^\\.\\.?$/ } readdir $dir]}\\n";
}
for my $path (qw(/.msb/x /.msb/scripts/x /.msb/tools/x)) { print "$path was written\\n" if open my $file, '>', $path }
for my $path (qw(/.msb/tools/extra /etc/tools/init /nowhere)) { print "$path exists\\n" if -e $path }
print "moved\\n" if rename '/.msb/tools', '/.msb/other';`
const SEEN = `/.msb 40755 0:0
/.msb/scripts 40755 0:0
/.msb/tools 40755 0:0
/.msb/tools/init 100755 0:0
/.msb/tools/perl 100755 0:0
/.msb/tools/perl5/strict.pm 100644 0:0
/.msb has scripts tools
/.msb/scripts has 
`

for (const [what, entries] of Object.entries(HOSTILE))
  test(`nothing of an image is in the worker's folder: ${what}`, LIMIT, async () => {
    const image = await makeTestImage({ layers: [entries, [{ path: 'top', content: what }]] })
    const { folder } = world.namespace
    await loadTestImage({ folder, images: world.registry.images }, image, 'localhost/hostile')
    const desired = makeDesiredRun({ ...POD_SPEC, image: 'localhost/hostile' })
    await driver.start(desired, NEVER)
    const seen = await runPerl(desired.run_id, LOOK)
    await driver.remove(desired.run_id)
    assert.equal(seen, SEEN)
  })
