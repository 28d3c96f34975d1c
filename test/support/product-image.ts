import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { runCommand } from '../../src/lib/run-command.ts'
import { ROOT } from './documents.ts'

/** The name of the image of this checkout. */
export const PRODUCT_IMAGE = 'localhost/sandyard:test'
const LIMIT_MS = 20 * 60_000

/**
 * Makes the container image and the Debian package of this checkout, unless they are there. It runs in the network of the
 * process that has started the machine of the tests, because the machine's has no way to the registries of packages.
 */
export async function makeProductImage(machine: string): Promise<{ readonly archive: string; readonly deb: string }> {
  const outside = `--net=/proc/${readFileSync(join(machine, 'owner'), 'utf8')}/ns/net`
  const make = ['node', join(ROOT, 'setup/engines/product-image.mjs'), PRODUCT_IMAGE]
  const { stdout } = await runCommand('nsenter', [outside, '--', ...make], { timeoutMs: LIMIT_MS })
  const archive = stdout.trim().split('\n').at(-1) ?? ''
  return { archive, deb: archive.replace(/tar$/, 'deb') }
}
