/** Whether an SSH connection starts a stopped sandbox, which its client chooses by a label. */
export const SSH_START_LABEL = 'sandyard.ssh-start'
export const SSH_START_VALUES = ['true', 'false'] as const

export function isSshStart(text: string): boolean {
  return SSH_START_VALUES.some((value) => value === text)
}

/** Whether a sandbox with this specification, as `Sandbox.spec_json` has it, is started by an SSH connection. */
export function startsOnSsh(spec_json: string): boolean {
  const spec: unknown = JSON.parse(spec_json)
  if (typeof spec !== 'object' || spec === null || !('labels' in spec)) return false
  return new Map<string, unknown>(Object.entries(Object(spec.labels))).get(SSH_START_LABEL) === 'true'
}
