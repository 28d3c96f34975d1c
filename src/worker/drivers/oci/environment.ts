import { SCRIPTS_FOLDER } from '../../../contract/workers/guest-tools.ts'
import { placeholderEnv } from '../../../domain/spec/secrets.ts'
import type { SandboxSpec } from '../../../domain/spec/spec.ts'
import type { ImageConfig } from '../../images/image.ts'
import { trustEnv } from '../shared/trust-certificates.ts'

/** The path in the sandbox of the first process's program. */
export const INIT_PATH = '/.msb/init'

const DEFAULT_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

/**
 * Returns the environment of a sandbox's processes as `KEY=VALUE` items. The spec's variables, and the
 * placeholders of its secrets, override the image's.
 * PATH starts with `SCRIPTS_FOLDER`, and HOME is `home` unless the spec or the image sets HOME.
 */
export function sandboxEnvironment(spec: SandboxSpec, image: ImageConfig, home: string): readonly string[] {
  const variables = new Map<string, string>([
    ['PATH', DEFAULT_PATH],
    ['HOME', home],
  ])
  for (const { key, value } of trustEnv(spec)) variables.set(key, value)
  for (const item of image.env) {
    const at = item.indexOf('=')
    if (at > 0) variables.set(item.slice(0, at), item.slice(at + 1))
  }
  for (const { key, value } of [...placeholderEnv(spec), ...spec.env]) variables.set(key, value)
  variables.set('PATH', `${SCRIPTS_FOLDER}:${variables.get('PATH') ?? DEFAULT_PATH}`)
  return [...variables].map(([key, value]) => `${key}=${value}`)
}
