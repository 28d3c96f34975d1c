import { signal } from '@preact/signals'
import { describeError } from './problem.tsx'

type Toast = {
  readonly id: number
  readonly text: string
  readonly kind: 'done' | 'failed'
  readonly undo?: { readonly label: string; readonly act: () => void }
}

const SHOWN_MS = 8_000
const toasts = signal<readonly Toast[]>([])
let lastId = 0

/** Shows a message for some seconds, with a way back if there is one. */
export function toast(
  text: string,
  { undo, kind = 'done' }: { undo?: Toast['undo']; kind?: Toast['kind'] } = {},
): void {
  lastId += 1
  const id = lastId
  toasts.value = [...toasts.value.slice(-3), { id, text, kind, ...(undo === undefined ? {} : { undo }) }]
  if (kind === 'done') setTimeout(() => dismiss(id), SHOWN_MS)
}

/** Runs what a person asked for, and shows its failure. */
export function attempt(work: () => Promise<unknown>): void {
  work().catch((error: unknown) => {
    toast(describeError(error), { kind: 'failed' })
  })
}

function dismiss(id: number): void {
  toasts.value = toasts.value.filter((one) => one.id !== id)
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map(({ id, text, kind, undo }) => (
        <div key={id} class={`toast ${kind}`}>
          <span>{text}</span>
          {undo === undefined ? null : (
            <button
              type="button"
              class="link"
              onClick={() => {
                dismiss(id)
                undo.act()
              }}
            >
              {undo.label}
            </button>
          )}
          <button type="button" class="icon-button" aria-label="Dismiss" onClick={() => dismiss(id)}>
            ×
          </button>
        </div>
      ))}
    </div>
  )
}
