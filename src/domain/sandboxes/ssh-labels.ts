/** Labels by which the creator of a sandbox chooses what SSH connections may do. Each is `true` or `false`. */
export const SSH_LABELS = {
  /** A connection starts the sandbox if it is stopped. */
  start: 'sandyard.ssh-start',
  /** A connection may forward its client's agent into the sandbox. */
  agent: 'sandyard.ssh-agent',
} as const
export const SSH_LABEL_VALUES = ['true', 'false'] as const

export function isSshLabelValue(text: string): boolean {
  return SSH_LABEL_VALUES.some((value) => value === text)
}

/** Whether a sandbox with this specification, as `Sandbox.spec_json` has it, allows SSH connections something. */
export function allowsSsh(what: keyof typeof SSH_LABELS, spec_json: string): boolean {
  const spec: unknown = JSON.parse(spec_json)
  if (typeof spec !== 'object' || spec === null || !('labels' in spec)) return false
  return new Map<string, unknown>(Object.entries(Object(spec.labels))).get(SSH_LABELS[what]) === 'true'
}
