import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { access, mkdir, mkdtemp, readdir, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { toolCommand } from '../../../../src/contract/workers/guest-tools.ts'
import { DEFAULT_OCI_SETTINGS } from '../../../../src/worker/drivers/oci/context.ts'
import { collectFiles, makeToolbox } from '../../../../src/worker/drivers/oci/rootfs/toolbox.ts'
import { fillStatus, makeFillContainers } from '../../../../src/worker/drivers/kubernetes/spec/fill-container.ts'
import type { Pod } from '../../../../src/worker/drivers/kubernetes/pod.ts'
import { waitUntil } from '../../../support/wait.ts'

// The container that fills a Pod's volumes, and the program in it.

let folder: string
let toolbox: string

before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'sandyard-fill-'))
  toolbox = await makeToolbox(join(folder, 'image'), await collectFiles(DEFAULT_OCI_SETTINGS.initBinary))
})
after(() => rm(folder, { recursive: true, force: true }))

type Run = { readonly exited: Promise<number | null>; readonly kill: () => void }

function fill(mode: string, to: string, more: readonly string[] = []): Run {
  const args = [mode, toolbox, join(folder, to, 'tools'), ...more]
  const [program = '', ...rest] = toolCommand('fill.pl', args, toolbox)
  const child = spawn(program, rest, { stdio: ['ignore', 'ignore', 'inherit'] })
  const exited = once(child, 'exit').then(([code]) => code as number | null) // an exit's first argument
  return { exited, kill: () => void child.kill('SIGTERM') }
}

async function makeFolders(name: string): Promise<string> {
  const scripts = join(folder, name, 'scripts')
  await mkdir(scripts, { recursive: true })
  return scripts
}

test('the hook returns once the folders are full, and the container ends after it', async () => {
  const scripts = await makeFolders('hold')
  const hook = fill('wait', 'hold')
  const container = fill('hold', 'hold', [scripts, 'hello', '2', 'echo ', 'hello'])
  assert.equal(await hook.exited, 0)
  assert.equal(await readFile(join(scripts, 'hello'), 'utf8'), 'echo hello')
  assert.deepEqual((await readdir(join(folder, 'hold/tools'))).toSorted(), (await readdir(toolbox)).toSorted())
  assert.equal(await container.exited, 0)
})

test('a container whose hook does not come ends when it is asked to, as a failure', async () => {
  const scripts = await makeFolders('asked')
  const container = fill('hold', 'asked', [scripts])
  await waitUntil(async () => {
    const isThere = await access(join(folder, 'asked/tools/loader')).then(
      () => true,
      () => false,
    )
    if (isThere) container.kill()
    return isThere
  })
  assert.equal(await container.exited, 1)
})

test('a container that has nothing to copy fails', async () => {
  const scripts = await makeFolders('none')
  const [program = '', ...rest] = toolCommand(
    'fill.pl',
    ['once', '/nowhere', join(folder, 'none/tools'), scripts],
    toolbox,
  )
  const child = spawn(program, rest, { stdio: 'ignore' })
  const [code] = (await once(child, 'exit')) as [number | null]
  assert.notEqual(code, 0)
})

test('a program of the image starts only after an init container, and others after a hook', () => {
  const input = { helperImage: 'helper:1', scripts: ['price', '1', '$(HOME)'] }
  const names = (all: readonly object[]) => all.map((one) => Object.keys(one).includes('lifecycle'))
  const toolboxFirst = makeFillContainers({ ...input, isOfImage: false })
  assert.deepEqual([names(toolboxFirst.initContainers), names(toolboxFirst.containers)], [[], [true]])
  const ofImage = makeFillContainers({ ...input, isOfImage: true })
  assert.deepEqual([names(ofImage.initContainers), names(ofImage.containers)], [[false], []])
  for (const [one] of [toolboxFirst.containers, ofImage.initContainers]) {
    const { command } = one as { readonly command: readonly string[] } // makeFillContainers' own format
    assert.equal(command.at(-1), '$$(HOME)')
  }
})

test('the state of the container is found wherever it is', () => {
  const terminated = { exitCode: 0 }
  const pod = (status: Pod['status']): Pod => ({
    metadata: { name: 'pod', namespace: 'n', uid: 'u', resourceVersion: '1' },
    ...(status === undefined ? {} : { status }),
  })
  const fillState = { name: 'fill', state: { terminated } }
  assert.deepEqual(fillStatus(pod({ initContainerStatuses: [fillState] })), fillState)
  assert.deepEqual(fillStatus(pod({ containerStatuses: [{ name: 'sandbox' }, fillState] })), fillState)
  assert.equal(fillStatus(pod({})), undefined)
})
