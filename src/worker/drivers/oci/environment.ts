import type { SandboxSpec } from '../../../domain/spec/spec.ts'
import type { ImageConfig } from '../../images/image.ts'

/** Where a spec's scripts lie in the sandbox; first on its PATH. */
export const SCRIPTS_FOLDER = '/.msb/scripts'
/** Where the first process's program lies in the sandbox. */
export const INIT_PATH = '/.msb/init'
/** Where the worker's own programs for sandboxes lie in the sandbox (decision 0014). */
export const TOOLS_FOLDER = '/.msb/tools'

const DEFAULT_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

/**
 * The environment of a sandbox's processes as `KEY=VALUE` items: the image's, then the spec's over it, with the
 * scripts first on the PATH and `HOME` of the user unless either sets one.
 */
export function sandboxEnvironment(spec: SandboxSpec, image: ImageConfig, home: string): readonly string[] {
  const variables = new Map<string, string>([
    ['PATH', DEFAULT_PATH],
    ['HOME', home],
  ])
  for (const item of image.env) {
    const at = item.indexOf('=')
    if (at > 0) variables.set(item.slice(0, at), item.slice(at + 1))
  }
  for (const { key, value } of spec.env) variables.set(key, value)
  variables.set('PATH', `${SCRIPTS_FOLDER}:${variables.get('PATH') ?? DEFAULT_PATH}`)
  return [...variables].map(([key, value]) => `${key}=${value}`)
}
