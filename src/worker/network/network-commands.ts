import { readdir } from 'node:fs/promises'
import { hasErrorCode } from '../../lib/error-code.ts'
import type { CommandResult, CommandRunner } from '../../lib/run-command.ts'
import { NETNS_DIR, netnsPath } from './network-names.ts'

/**
 * The time limit for a command. Commands take 5 to 40 ms on a busy machine (measured), so only a hung command reaches
 * the limit.
 */
const COMMAND_TIMEOUT_MS = 15_000

/** Runs iproute2 commands in one process, in the host's namespace or a named one. Stops at the first failure. */
export async function ipBatch(commands: CommandRunner, lines: readonly string[], namespace?: string): Promise<void> {
  const where = namespace === undefined ? [] : ['-n', namespace]
  await commands.run('ip', [...where, '-b', '-'], { timeoutMs: COMMAND_TIMEOUT_MS, input: `${lines.join('\n')}\n` })
}

/** Applies nftables commands as one transaction, in the host's namespace or a named one. */
export async function nft(commands: CommandRunner, lines: readonly string[], namespace?: string): Promise<void> {
  await runInNamespace(commands, ['nft', '-f', '-'], { namespace, input: `${lines.join('\n')}\n` })
}

/**
 * Runs a command in a network namespace. `ip netns exec` would also mount a new /sys, which hides the cgroups. This
 * function leaves /sys as it is.
 */
export async function runInNamespace(
  commands: CommandRunner,
  command: readonly string[],
  options: { readonly namespace?: string | undefined; readonly input?: string },
): Promise<CommandResult> {
  const [file = '', ...args] = command
  return commands.run(file, args, {
    timeoutMs: COMMAND_TIMEOUT_MS,
    ...(options.input === undefined ? {} : { input: options.input }),
    ...(options.namespace === undefined ? {} : { netns: netnsPath(options.namespace) }),
  })
}

/** Runs an iproute2 query with JSON output. Null when the query fails, for example because a device is missing. */
export async function ipJson(commands: CommandRunner, args: readonly string[]): Promise<unknown> {
  const { code, stdout } = await commands.attempt('ip', ['-j', ...args], { timeoutMs: COMMAND_TIMEOUT_MS })
  return code !== 0 ? null : stdout.trim() === '' ? [] : JSON.parse(stdout)
}

/** Lists the devices in the host's namespace. */
export async function deviceNames(commands: CommandRunner): Promise<readonly string[]> {
  const links = await ipJson(commands, ['link', 'show'])
  if (!Array.isArray(links)) throw new Error('the devices of this machine could not be read')
  return links.flatMap((link: unknown) =>
    typeof link === 'object' && link !== null && 'ifname' in link && typeof link.ifname === 'string'
      ? [link.ifname]
      : [],
  )
}

/** Lists a set in the host's namespace (`family table name`) as nft's JSON. Null when the set doesn't exist. */
export async function listSet(commands: CommandRunner, set: string): Promise<unknown> {
  const { code, stdout } = await commands.attempt('nft', ['-j', 'list', 'set', ...set.split(' ')], {
    timeoutMs: COMMAND_TIMEOUT_MS,
  })
  return code === 0 ? JSON.parse(stdout) : null
}

/** Deletes a device. A missing device is fine. */
export async function deleteLink(commands: CommandRunner, device: string, namespace?: string): Promise<void> {
  const where = namespace === undefined ? [] : ['-n', namespace]
  const { code, stderr } = await commands.attempt('ip', [...where, 'link', 'del', device], {
    timeoutMs: COMMAND_TIMEOUT_MS,
  })
  if (code === 0 || !(await linkExists(commands, device, namespace))) return
  throw new Error(`deleting the device ${device}: ${stderr.trim()}`)
}

async function linkExists(commands: CommandRunner, device: string, namespace?: string): Promise<boolean> {
  const where = namespace === undefined ? [] : ['-n', namespace]
  return (await ipJson(commands, [...where, 'link', 'show', 'dev', device])) !== null
}

/**
 * Deletes the name of a namespace. If processes still run in the namespace, it continues to exist, without a network. A
 * missing name is fine.
 */
export async function deleteNamespace(commands: CommandRunner, namespace: string): Promise<void> {
  const { code, stderr } = await commands.attempt('ip', ['netns', 'del', namespace], { timeoutMs: COMMAND_TIMEOUT_MS })
  if (code === 0 || !(await namespaceNames()).includes(namespace)) return
  throw new Error(`deleting the network namespace ${namespace}: ${stderr.trim()}`)
}

/** Lists the named network namespaces of this machine. */
export async function namespaceNames(): Promise<readonly string[]> {
  try {
    return await readdir(NETNS_DIR)
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return [] // no namespace was ever created
    throw error
  }
}
