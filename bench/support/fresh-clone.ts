import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import type { CloudProgram } from './cloud.ts'

const ROOT = join(import.meta.dirname, '../..')

/** Clones the commit of this checkout. Resolves with what runs `npm start` in the clone, which has no packages yet. */
export async function cloneCheckout(folder: string): Promise<CloudProgram> {
  await promisify(execFile)('git', ['clone', '--quiet', ROOT, folder])
  // What `npm start` runs. npm itself takes a third of a second, and stays as a process.
  return { command: ['sh', 'setup/sandyard', 'up'], cwd: folder }
}

/** Where npm finds packages without a network: a start of a clone is faster with what is in there. */
export async function describeNpmCache(): Promise<string> {
  const { stdout } = await promisify(execFile)('npm', ['config', 'get', 'cache'])
  const { stdout: size } = await promisify(execFile)('du', ['-sm', join(stdout.trim(), '_cacache')]).catch(() => ({
    stdout: '0',
  }))
  return `npm's cache of ${size.split('\t')[0] ?? '0'} MiB`
}
