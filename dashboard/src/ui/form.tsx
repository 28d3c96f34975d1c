import { createContext, type ComponentChildren } from 'preact'
import { useContext, useId, useState } from 'preact/hooks'
import { ApiError } from '../lib/api.ts'
import { describeError, Problem } from './problem.tsx'

/** The refused field of the form, as the API names it, and the words. */
const Refused = createContext<{ readonly field: string; readonly text: string } | null>(null)

type FormProps = {
  readonly action: string
  readonly onSubmit: (values: FormValues) => Promise<unknown>
  readonly children: ComponentChildren
  readonly more?: ComponentChildren
}
export type FormValues = { text(name: string): string; isOn(name: string): boolean; all(name: string): string[] }

/** A form. A refusal is shown at its field, or above the button if no field is meant. */
export function Form({ action, onSubmit, children, more }: FormProps) {
  const [error, setError] = useState<unknown>(null)
  const [isBusy, setBusy] = useState(false)
  const field = error instanceof ApiError ? error.details['field'] : null
  const refused = typeof field === 'string' ? { field, text: describeError(error) } : null
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault()
    if (isBusy || !(event.currentTarget instanceof HTMLFormElement)) return
    const data = new FormData(event.currentTarget)
    const all = (name: string): string[] => data.getAll(name).map((value) => (typeof value === 'string' ? value : ''))
    setBusy(true)
    setError(null)
    try {
      await onSubmit({ all, text: (name) => (all(name)[0] ?? '').trim(), isOn: (name) => data.has(name) })
    } catch (failure) {
      setError(failure)
    }
    setBusy(false)
  }
  return (
    <form onSubmit={(event) => void submit(event)} noValidate={false}>
      <Refused.Provider value={refused}>{children}</Refused.Provider>
      {error === null ? null : <Problem error={error} />}
      <footer>
        {more}
        <button type="submit" class="button primary" aria-busy={isBusy} disabled={isBusy}>
          {action}
        </button>
      </footer>
    </form>
  )
}

type FieldProps = {
  readonly label: string
  readonly name: string
  readonly hint?: ComponentChildren
  /** The field of the API, if it has another name. */
  readonly field?: string
  readonly children: (attributes: {
    readonly id: string
    readonly name: string
    readonly 'aria-describedby': string
    readonly 'aria-invalid': boolean
  }) => ComponentChildren
}

/** A labelled field with a hint, and the API's refusal of it. */
export function Field({ label, name, hint, field = name, children }: FieldProps) {
  const id = useId()
  const refused = useContext(Refused)
  const isRefused =
    refused !== null &&
    (refused.field === field || refused.field.startsWith(`${field}.`) || refused.field.startsWith(`${field}[`))
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children({ id, name, 'aria-describedby': `${id}-hint`, 'aria-invalid': isRefused })}
      <div id={`${id}-hint`} class={isRefused ? 'refusal' : 'hint'}>
        {isRefused ? refused.text : hint}
      </div>
    </div>
  )
}

type TextProps = Omit<FieldProps, 'children'> & {
  readonly value?: string
  readonly type?: 'text' | 'number' | 'password'
  readonly placeholder?: string
  readonly isRequired?: boolean
  readonly min?: number
  readonly autoFocus?: boolean
}

/** A field with one line of text. */
export function TextField({ value = '', type = 'text', placeholder, isRequired = false, min, ...field }: TextProps) {
  return (
    <Field {...field}>
      {(attributes) => {
        const all = {
          ...attributes,
          defaultValue: value,
          placeholder,
          required: isRequired,
          autocomplete: 'off',
        } as const
        return type === 'number' ? (
          <input {...all} type="number" min={min} />
        ) : type === 'password' ? (
          <input {...all} type="password" />
        ) : (
          <input {...all} type="text" />
        )
      }}
    </Field>
  )
}

/** A field with several lines of text. */
export function TextArea({
  value = '',
  placeholder,
  rows = 3,
  ...field
}: Omit<TextProps, 'type'> & { readonly rows?: number }) {
  return (
    <Field {...field}>
      {(attributes) => (
        <textarea {...attributes} rows={rows} placeholder={placeholder} defaultValue={value} spellcheck={false} />
      )}
    </Field>
  )
}

type Choice = { readonly value: string; readonly label: string }
type SelectProps = Omit<FieldProps, 'children'> & {
  readonly choices: readonly Choice[]
  readonly value?: string
  readonly onPick?: (value: string) => void
}

/** A field with a choice of one. */
export function SelectField({ choices, value, onPick, ...field }: SelectProps) {
  return (
    <Field {...field}>
      {(attributes) => (
        <select {...attributes} defaultValue={value} onChange={(event) => onPick?.(event.currentTarget.value)}>
          {choices.map((choice) => (
            <option key={choice.value} value={choice.value}>
              {choice.label}
            </option>
          ))}
        </select>
      )}
    </Field>
  )
}

/** A box to check. */
export function CheckField({
  label,
  name,
  value = 'on',
  isOn = false,
}: {
  readonly label: string
  readonly name: string
  readonly value?: string
  readonly isOn?: boolean
}) {
  return (
    <label class="check">
      <input type="checkbox" name={name} value={value} defaultChecked={isOn} />
      {label}
    </label>
  )
}
